"""The runtime's own path over the kernels: a tiny Llama's logits, step after step, against its reference attention.

Prefixes before, at and after the edges of blocks, trees of changing shapes, paths committed in between; steps of their
own size, and padded to buckets (on a GPU: recorded and replayed).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from transformers import LlamaConfig

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.kv_cache import CachedSequence
from specgrove.runtime.loading import LoadedModel
from specgrove_bench.gpu_check.cases import Rows
from specgrove_bench.gpu_check.correctness import Outcome
from specgrove_bench.gpu_check.llama_step import random_llama
from specgrove_bench.gpu_check.runtime_model import on_kernels, runtime_llama
from specgrove_kernels.backend import KernelSet

# Of the largest logit. Half precision rounds every layer's states, by whichever attention.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
_BLOCK_SIZE = 4
_PREFIXES = (0, 3, 4, 9)
_TREES = (6, 1, 6, 6, 6)  # nodes of each sequence's tree, by step: one bucket comes back until it is replayed


def tiny_llama() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=97,
        max_position_embeddings=256,
        initializer_range=0.3,  # wide, so that attention is far from uniform
        tie_word_embeddings=False,
    )


def check_seam(kernels: KernelSet, device: torch.device) -> Iterator[Outcome]:
    """Outcomes of whole steps through `PackedForward`, eager and in buckets."""
    on_gpu = device.type == "cuda"  # half precision would keep the interpreter busy for nothing
    for dtype, tolerance in TOLERANCES.items() if on_gpu else [(torch.float32, TOLERANCES[torch.float32])]:
        torch.manual_seed(0)
        config = tiny_llama()
        plain = runtime_llama(random_llama(config, device, dtype), config)
        expected = _logits_of_steps(plain)
        for name, is_padded in (("own size", False), ("in buckets", True)):
            actual = _logits_of_steps(on_kernels(plain, kernels, is_padded=is_padded))
            error = max(
                float((ours - theirs).abs().max() / theirs.abs().max())
                for ours, theirs in zip(actual, expected, strict=True)
            )
            yield Outcome("whole step of the runtime", f"{name}, {dtype}", error, tolerance)


def _logits_of_steps(loaded: LoadedModel) -> list[torch.Tensor]:
    cache = loaded.new_cache(max_tokens=256, block_size=_BLOCK_SIZE)
    forward, draw = PackedForward(loaded, cache), random.Random(5)
    texts = [cache.new_sequence() for _ in _PREFIXES]
    for seq, length in zip(texts, _PREFIXES, strict=True):
        if length:
            forward.run([_rows(seq, Rows.chain(0, length), draw)])
            cache.commit(seq, range(length))
    outputs = []
    for step, num_nodes in enumerate(_TREES):
        trees = [Rows.tree(seq.cached_len, num_nodes, step + number) for number, seq in enumerate(texts)]
        outputs.append(forward.run([_rows(seq, tree, draw) for seq, tree in zip(texts, trees, strict=True)]))
        for seq, tree in zip(texts, trees, strict=True):
            cache.commit(seq, _path_to(tree, num_nodes - 1))
    return outputs


def _rows(seq: CachedSequence, rows: Rows, draw: random.Random) -> SequenceRows:
    tokens = [draw.randrange(1, 97) for _ in rows.parents]
    positions = [seq.cached_len + depth for depth in rows.depths]
    return SequenceRows(seq, tokens, positions, rows.parents, [True] * len(tokens))


def _path_to(rows: Rows, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = rows.parents[node]
    return path[::-1]
