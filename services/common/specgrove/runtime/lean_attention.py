"""Attention of one sequence's rows over its cached keys, in operators that write where they are told to.

    keys of a sequence    | run of slots   | run    | run with the rows in flight |
    scores                | bmm            | bmm    | bmm            + mask tail  |   softmax over all
    mixed                 | bmm            + baddbmm + baddbmm                    |

Sequences go one after the other, three operators each and all buffers shared between layers: on CPUs that beats every
way of making one product of them (README).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specgrove.runtime.attention import PackedPart

# A run costs two more operators, a gathered slot is copied: below this many slots a run copying is cheaper (README).
_LEAST_SLOTS_PER_RUN = 64


@dataclass(frozen=True, slots=True)
class _Run:
    """Keys and values of neighbouring slots, by layer, and where their scores stand."""

    keys: Sequence[torch.Tensor]  # [K * H_kv, D, l] each
    values: Sequence[torch.Tensor]  # [K * H_kv, l, D] each
    scores: torch.Tensor  # [K * H_kv, n * group, l]
    weights: torch.Tensor  # the same


@dataclass(frozen=True, slots=True)
class SequenceAttention:
    """One sequence's rows in one forward."""

    query: torch.Tensor  # [K * H_kv, n * group, D], where every layer leaves its queries
    mixed: torch.Tensor  # the same, where every layer's result is wanted
    runs: tuple[_Run, ...]
    scores: torch.Tensor  # [K * H_kv, n * group, L]
    weights: torch.Tensor  # the same
    tail_scores: torch.Tensor  # scores of the rows in flight, [K * H_kv, n * group, T]
    tail_mask: torch.Tensor | None  # [n * group, T], 0 or -inf; None where every key is seen

    @classmethod
    def plan(
        cls,
        part: PackedPart,
        query: torch.Tensor,  # [K * H_kv, n * group, D]
        mixed: torch.Tensor,  # [K * H_kv, n * group, D]
        group: int,
        keys: torch.Tensor,  # the cache's, [layers, slots, K * H_kv, D]
        values: torch.Tensor,  # the cache's, [layers, slots, K * H_kv, D]
    ) -> SequenceAttention:
        """Make the views and buffers that all layers share."""
        slots = part.read_slots
        pieces = _pieces(slots)
        num_keys = pieces[-1].stop
        scores = query.new_empty(*query.shape[:2], num_keys)
        weights = torch.empty_like(scores)
        runs = tuple(_run(piece, keys, values, scores, weights) for piece in pieces)
        visible = part.mask.visible  # bool [n, T]
        tail_mask = None
        if visible is not None:
            bias = torch.zeros(visible.shape, dtype=query.dtype, device=query.device)
            tail_mask = bias.masked_fill_(~visible, float("-inf")).repeat_interleave(group, 0)
        tail_len = 1 if visible is None else visible.shape[1]
        return cls(query, mixed, runs, scores, weights, scores[..., num_keys - tail_len :], tail_mask)

    def attend(self, layer: int) -> None:
        """From `query` to `mixed`. Scores of more than float32's bits are not kept; softmax is float32."""
        for run in self.runs:
            torch.bmm(self.query, run.keys[layer], out=run.scores)
        if self.tail_mask is not None:
            self.tail_scores.add_(self.tail_mask)
        if self.scores.dtype == torch.float32:
            torch.softmax(self.scores, -1, out=self.weights)
        else:
            self.weights.copy_(torch.softmax(self.scores, -1, dtype=torch.float32))
        first, *others = self.runs
        torch.bmm(first.weights, first.values[layer], out=self.mixed)
        for run in others:
            torch.baddbmm(self.mixed, run.weights, run.values[layer], out=self.mixed)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Keys `start` to `stop` of a sequence, and the slots they lie in."""

    start: int
    stop: int
    slots: torch.Tensor | slice


def _pieces(slots: torch.Tensor | slice) -> list[_Piece]:
    """The runs of `slots`; one piece of scattered slots where runs are short."""
    if isinstance(slots, slice):
        return [_Piece(0, slots.stop - slots.start, slots)]
    if slots.device.type != "cpu":  # looking at the slots would wait for the device
        return [_Piece(0, len(slots), slots)]
    breaks = (slots.diff() != 1).nonzero()[:, 0].add_(1).tolist()
    if len(slots) < _LEAST_SLOTS_PER_RUN * (len(breaks) + 1):
        return [_Piece(0, len(slots), slots)]
    edges = zip([0, *breaks], [*breaks, len(slots)], strict=True)
    firsts = slots[[0, *breaks]].tolist()
    return [
        _Piece(start, stop, slice(first, first + stop - start))
        for (start, stop), first in zip(edges, firsts, strict=True)
    ]


def _run(piece: _Piece, keys: torch.Tensor, values: torch.Tensor, scores: torch.Tensor, weights: torch.Tensor) -> _Run:
    part_of_scores, part_of_weights = (one[..., piece.start : piece.stop] for one in (scores, weights))
    slots = piece.slots
    if isinstance(slots, slice):
        read_keys: Sequence[torch.Tensor] = keys[:, slots].permute(0, 2, 3, 1).unbind(0)
        read_values: Sequence[torch.Tensor] = values[:, slots].transpose(1, 2).unbind(0)
    else:
        read_keys, read_values = _Gathered(keys, slots, (1, 2, 0)), _Gathered(values, slots, (1, 0, 2))
    return _Run(read_keys, read_values, part_of_scores, part_of_weights)


class _Gathered(Sequence[torch.Tensor]):
    """Scattered slots by layer, copied together when a layer comes to them: its new rows are among them."""

    def __init__(self, cache: torch.Tensor, slots: torch.Tensor, order: tuple[int, int, int]) -> None:
        self._layers = cache.unbind(0)
        self._slots = slots
        self._together = cache.new_empty(len(slots), *cache.shape[2:])
        self._view = self._together.permute(order)

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer: Any) -> Any:
        torch.index_select(self._layers[layer], 0, self._slots, out=self._together)
        return self._view
