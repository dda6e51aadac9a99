"""The target with several generations side by side: prompts read once, then steps with or without trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from specgrove.features import TargetFeatures
from specgrove.runtime.features import encode_parts
from specgrove.runtime.forward import PackedForward, RowOutputs, SequenceRows
from specgrove.runtime.kv_cache import CachedSequence
from specgrove.runtime.loading import LoadedModel
from specgrove.tree import TokenTree

_PREFILL_ROWS = 256
_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class TreeRows:
    """What the target says of one tree, a row a node."""

    logits: torch.Tensor  # float32 [num_nodes, V]
    states: torch.Tensor | None  # float [num_nodes, P, H]; None where no features are wanted

    def features_after(self, node: int, base_len: int) -> TargetFeatures | None:
        """The features of the base of `base_len` tokens whose last token was chosen at `node`."""
        return None if self.states is None else _encoded(self.states[node], base_len)


class TargetBatch:
    """Some prompts in the target's cache. As in the verifier, the last token of a base (the root) is not cached."""

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        max_nodes: int,
        feature_layers: tuple[int, ...] = (),
    ) -> None:
        room = sum(-(-(len(prompt) + max_tokens + max_nodes + 1) // _BLOCK_SIZE) * _BLOCK_SIZE for prompt in prompts)
        self._cache = loaded.new_cache(max_tokens=room, block_size=_BLOCK_SIZE)
        self._forward = PackedForward(loaded, self._cache)
        self._tap = loaded.state_tap() if feature_layers else None
        self._layers = feature_layers
        self._prompts = prompts
        self._seqs = [self._cache.new_sequence() for _ in prompts]
        self.prompt_features: dict[int, TargetFeatures] = {}
        for index, prompt in enumerate(prompts):
            self._read(index, prompt)

    def rewind(self) -> None:
        """Back to the prompts."""
        for seq, prompt in zip(self._seqs, self._prompts, strict=True):
            self._cache.truncate(seq, len(prompt) - 1)

    def run(self, trees: Mapping[int, TokenTree]) -> dict[int, TreeRows]:
        """One packed forward over the trees, by number of the prompt."""
        batch = [_tree_rows(self._seqs[index], tree) for index, tree in trees.items()]
        outputs = self._run(batch)
        rows, first = {}, 0
        for index, tree in trees.items():
            part = slice(first, first + tree.num_nodes)
            rows[index] = TreeRows(outputs.logits[part], outputs.states[part] if self._tap else None)
            first += tree.num_nodes
        return rows

    def commit(self, index: int, accepted_nodes: Sequence[int]) -> None:
        """Keep the root and the accepted nodes of the tree that ran last."""
        self._cache.commit(self._seqs[index], [0, *accepted_nodes])

    def forget(self, index: int) -> None:
        """Give up the rows of the tree that ran last: the generation has ended."""
        self._cache.rollback(self._seqs[index])

    def _read(self, index: int, prompt: Sequence[int]) -> None:
        seq, last = self._seqs[index], len(prompt) - 1
        for first in range(0, last, _PREFILL_ROWS):
            stop = min(first + _PREFILL_ROWS, last)
            num_rows = stop - first
            wants = [False] * (num_rows - 1) + [stop == last]
            rows = SequenceRows(seq, list(prompt[first:stop]), range(first, stop), range(-1, num_rows - 1), wants)
            outputs = self._run([rows])
            self._cache.commit(seq, range(num_rows))
            if self._tap is not None and stop == last:
                # The last row but one of the prompt is where its last token would have been chosen.
                self.prompt_features[index] = _encoded(outputs.states[0], len(prompt))

    def _run(self, batch: Sequence[SequenceRows]) -> RowOutputs:
        if self._tap is not None:
            return self._forward.run_and_read(batch, self._tap, self._layers)
        logits = self._forward.run(batch)
        return RowOutputs(logits, logits.new_empty(0))


def _tree_rows(seq: CachedSequence, tree: TokenTree) -> SequenceRows:
    positions = [seq.cached_len + depth for depth in tree.depths]
    return SequenceRows(seq, tree.token_ids, positions, tree.parents, [True] * tree.num_nodes)


def _encoded(parts: torch.Tensor, base_len: int) -> TargetFeatures:  # float [P, H]
    return TargetFeatures(base_len, encode_parts(parts).tobytes())
