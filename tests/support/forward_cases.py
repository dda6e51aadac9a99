"""Tiny models loaded both ways, and sequences that run through ours and are checked against their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import torch

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.kv_cache import CachedSequence, KVCache
from specgrove.runtime.loading import LoadedModel
from specgrove.tree import TokenTree, TreeBuilder
from support.tiny_models import VOCAB_SIZE, own_logits

BLOCK_SIZE = 4
TOLERANCE = 2e-4


@dataclass(slots=True)
class Case:
    """A tiny model loaded both ways."""

    own: object
    loaded: LoadedModel

    def runner(self, *, num_blocks: int = 60, block_size: int = BLOCK_SIZE) -> Runner:
        cache = self.loaded.new_cache(max_tokens=num_blocks * block_size, block_size=block_size)
        return Runner(self, cache, PackedForward(self.loaded, cache))


@dataclass(slots=True)
class Text:
    """A sequence in the cache beside its tokens."""

    seq: CachedSequence
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Runner:
    case: Case
    cache: KVCache
    forward: PackedForward

    def prefilled(self, tokens: Sequence[int]) -> Text:
        text = Text(self.cache.new_sequence())
        if tokens:
            self.forward.run([self.chain(text, tokens)])
            self.commit(text, tokens, range(len(tokens)))
        return text

    def chain(self, text: Text, tokens: Sequence[int], *, wants: bool = True) -> SequenceRows:
        first = len(text.tokens)
        size = len(tokens)
        return SequenceRows(text.seq, tokens, range(first, first + size), range(-1, size - 1), [wants] * size)

    def tree(self, text: Text, tree: TokenTree) -> SequenceRows:
        """All nodes, the root too, under the cached prefix."""
        positions = [len(text.tokens) + depth for depth in tree.depths]
        return SequenceRows(text.seq, tree.token_ids, positions, tree.parents, [True] * tree.num_nodes)

    def commit(self, text: Text, tokens: Sequence[int], rows: Sequence[int]) -> None:
        self.cache.commit(text.seq, rows)
        text.tokens += tokens

    def expected(self, text: Text, tree: TokenTree) -> torch.Tensor:
        """Each node by the model itself, on the sequence root-to-node."""
        rows = []
        for node in range(tree.num_nodes):
            path = [*text.tokens, tree.token_ids[0], *tree.token_path(node)]
            rows.append(own_logits(self.case.own, path)[-1])
        return torch.stack(rows)


def random_tokens(random: Random, count: int) -> list[int]:
    return [random.randrange(3, VOCAB_SIZE) for _ in range(count)]


def random_tree(random: Random, num_draft_nodes: int, *, depth_bias: float = 0.5) -> TokenTree:
    builder = TreeBuilder(random.randrange(3, VOCAB_SIZE))
    while builder.num_nodes <= num_draft_nodes:
        deepest = builder.num_nodes - 1
        parent = deepest if random.random() < depth_bias else random.randrange(builder.num_nodes)
        builder.add(parent, random.randrange(3, VOCAB_SIZE))
    return builder.build()


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert actual.shape == expected.shape
    assert actual.dtype == torch.float32
    worst = float((actual - expected).abs().max())
    assert worst <= tolerance, f"logits differ by {worst}"
