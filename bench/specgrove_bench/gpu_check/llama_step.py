"""A whole verification step at the shapes of a Llama with random weights: forward, choice, walk, compaction.

Every step starts from the same prefixes, so that a median means something: what it commits is moved in the cache and
then forgotten. Packing a batch on the CPU is part of the step, as in the engine; CUDA graphs are not used.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from specgrove_bench.gpu_check.acceptance import SyntheticAcceptance, tree_tokens
from specgrove_bench.gpu_check.cases import Rows, scattered_tables
from specgrove_kernels.backend import KernelSet
from specgrove_kernels.paged_batch import PagedBatch, pack_batch, slots_of
from specgrove_kernels.tree_walk import Walks

_ATTENTION = "specgrove_gpu_check"
_BLOCK_SIZE = 16
_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True)
class _LayerStep:
    """What the attention of a layer needs beside its queries, keys and values."""

    kernels: KernelSet
    storage: torch.Tensor  # [layers, 2, slots, H_kv, D]
    batch: PagedBatch
    slots: torch.Tensor  # int64 [N]


def llama_8b() -> LlamaConfig:
    """The shapes of Llama 3.1 8B."""
    return LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
    )


class StepStand:
    """A target with random weights and a cache full of random prefixes, ready to run steps of one tree shape."""

    def __init__(
        self,
        model: nn.Module,
        config: LlamaConfig,
        kernels: KernelSet,
        *,
        prefixes: Sequence[int],
        parents: Sequence[int],  # of each sequence's tree; a root alone is plain decoding
        acceptance: SyntheticAcceptance,
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._device = next(model.parameters()).device
        self._rows = [Rows(prefix, tuple(parents), len(parents)) for prefix in prefixes]
        self._tables = scattered_tables(self._rows, _BLOCK_SIZE)
        self._tokens = tree_tokens(parents)
        self._acceptance = acceptance
        num_kv_heads = config.num_key_value_heads or config.num_attention_heads
        head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
        self._heads_per_kv_head = config.num_attention_heads // num_kv_heads
        self._draw = random.Random(0)
        num_slots = sum(map(len, self._tables)) * _BLOCK_SIZE
        self.storage = torch.randn(
            (config.num_hidden_layers, 2, num_slots, num_kv_heads, head_dim),
            dtype=next(model.parameters()).dtype,
            device=self._device,
        )
        self.num_steps = 0
        self.num_committed = 0

    @torch.inference_mode()
    def step(self) -> Walks:
        """One step of all sequences; adds what it commits to `num_committed`."""
        batch = pack_batch(
            [rows.in_flight(table) for rows, table in zip(self._rows, self._tables, strict=True)],
            block_size=_BLOCK_SIZE,
            heads_per_kv_head=self._heads_per_kv_head,
            device=self._device,
        )
        positions = batch.query_positions.long()
        logits = self._forward(batch, positions)
        walks = self._verify(batch, logits, positions)
        counts, paths = walks.num_accepted.tolist(), walks.accepted_nodes.tolist()
        self._compact([path[:count] for path, count in zip(paths, counts, strict=True)])
        self.num_steps += 1
        self.num_committed += sum(counts) + len(counts)
        return walks

    def _forward(self, batch: PagedBatch, positions: torch.Tensor) -> torch.Tensor:  # float32 [N, V]
        token_ids = torch.tensor([self._tokens * len(self._rows)], device=self._device)
        slots = torch.cat(
            [
                slots_of(batch.block_tables[number], self._places(rows), _BLOCK_SIZE)
                for number, rows in enumerate(self._rows)
            ]
        )
        outputs = self._model(
            token_ids,
            position_ids=positions[None],
            use_cache=False,
            layer_step=_LayerStep(self._kernels, self.storage, batch, slots),
        )
        return outputs.logits[0].float()

    def _places(self, rows: Rows) -> torch.Tensor:
        return torch.arange(rows.prefix_len, rows.prefix_len + len(rows.parents), device=self._device)

    def _verify(self, batch: PagedBatch, logits: torch.Tensor, positions: torch.Tensor) -> Walks:
        """The kernels choose as they would; what random weights chose then gives way to the synthetic choices."""
        temperatures = torch.full((len(logits),), _TEMPERATURE, device=self._device)
        chosen = self._kernels.choose_tokens(logits, temperatures, positions * 0, positions + 1)
        parents = self._rows[0].parents
        wanted = [choice for _ in self._rows for choice in self._acceptance.choices(self._tokens, parents, self._draw)]
        return self._kernels.walk_trees(
            chosen.copy_(torch.tensor(wanted, device=self._device)),
            torch.tensor(self._tokens * len(self._rows), device=self._device),
            torch.tensor(parents * len(self._rows), dtype=torch.int32, device=self._device),
            batch.row_starts,
            max_depth=max(1, max(self._rows[0].depths)),
            max_nodes=len(parents),
        )

    def _compact(self, paths: Sequence[Sequence[int]]) -> None:
        sources: list[int] = []
        targets: list[int] = []
        starts = [0]
        for rows, table, path in zip(self._rows, self._tables, paths, strict=True):
            for target, source in enumerate(path, start=1):  # the root stays where it is
                if source != target:
                    sources.append(_slot(table, rows.prefix_len + source))
                    targets.append(_slot(table, rows.prefix_len + target))
            starts.append(len(sources))
        if sources:
            moves = torch.tensor([sources, targets], device=self._device)
            starts_tensor = torch.tensor(starts, dtype=torch.int32, device=self._device)
            self._kernels.compact_kv(self.storage, moves[0], moves[1], starts_tensor)


def random_llama(config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A Llama of `config` with random weights whose attention is the kernels'."""
    AttentionInterface.register(_ATTENTION, _attend)
    config._attn_implementation = _ATTENTION
    with device:
        previous = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model: nn.Module = LlamaForCausalLM(config)
        finally:
            torch.set_default_dtype(previous)
    return model.eval().requires_grad_(False)


def _attend(
    module: Any,
    query: torch.Tensor,  # [1, H, N, D]
    key: torch.Tensor,  # [1, H_kv, N, D]
    value: torch.Tensor,  # [1, H_kv, N, D]
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    layer_step: _LayerStep,
    **unused: Any,
) -> tuple[torch.Tensor, None]:  # [1, N, H, D]
    storage = layer_step.storage[module.layer_idx]
    rows_of_query, rows_of_key, rows_of_value = (part[0].transpose(0, 1) for part in (query, key, value))
    layer_step.kernels.write_kv(rows_of_key, rows_of_value, storage, layer_step.slots)
    mixed = layer_step.kernels.paged_tree_attention(rows_of_query, storage, layer_step.batch, scaling=scaling)
    return mixed[None], None


def _slot(table: Sequence[int], place: int) -> int:
    return table[place // _BLOCK_SIZE] * _BLOCK_SIZE + place % _BLOCK_SIZE
