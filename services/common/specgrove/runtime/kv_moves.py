"""Accepted paths that wait to be moved next to their prefixes: those of all sequences of a step in one launch.

    commit A: (r2 -> r1), (r4 -> r2)  ┐
    commit B: none                    ├──▶ one transfer, one launch, before anything is written again
    commit C: (r3 -> r1)              ┘

Waiting is safe: what a commit frees keeps its contents until the next forward writes, and that moves first. Paths that
wait together lie in blocks of different sequences, so none of them writes what another reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specgrove_kernels.backend import CompactKV
from specgrove_kernels.staging import stage


class PendingMoves:
    """Moves within one cache, collected and then done together."""

    def __init__(self, storage: torch.Tensor, compact_kv: CompactKV) -> None:
        """`storage` is the whole cache, [layers, 2, slots, H_kv, D]."""
        self._storage = storage
        self._compact_kv = compact_kv
        self._sources: list[int] = []
        self._targets: list[int] = []
        self._starts = [0]

    def add(self, source_slots: Sequence[int], target_slots: Sequence[int]) -> None:
        """One sequence's moves, in ascending order of its rows."""
        self._sources += source_slots
        self._targets += target_slots
        self._starts.append(len(self._sources))

    def flush(self) -> None:
        """Do what waits. Before anything else reads or writes the cache."""
        if not self._sources:
            return
        moves = np.array([self._sources, self._targets], dtype=np.int64)
        starts = np.array(self._starts, dtype=np.int32)
        slots, move_starts = stage([moves, starts], self._storage.device)
        self._compact_kv(self._storage, slots[0], slots[1], move_starts)
        self._sources, self._targets, self._starts = [], [], [0]
