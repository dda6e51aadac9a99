"""Moving an accepted path next to the prefix, in plain torch. `kv_compaction_triton` does it in one launch.

    row in flight    r0 r1 r2 r3 r4          moves of a sequence: (source, target), in order of the path
    kept [0, 2, 4]    │  ┌──┘     │          (r2, place 1), (r4, place 2)
                     r0 r2 r4 ────┘

A path ascends, so a target is never the source of a *later* move: moves of one sequence done in order overlap safely.
"""

from __future__ import annotations

import torch


def compact_kv(
    storage: torch.Tensor,  # [layers, 2, slots, H_kv, D], changed in place
    source_slots: torch.Tensor,  # int64 [M], the moves of all sequences, each sequence's in ascending order of its rows
    target_slots: torch.Tensor,  # int64 [M]
    move_starts: torch.Tensor,  # int32 [B + 1], where each sequence's moves start
) -> None:
    """Slot `target_slots[i]` holds what `source_slots[i]` held before, in every layer, keys and values."""
    for start, stop in zip(move_starts[:-1].tolist(), move_starts[1:].tolist(), strict=True):
        # Advanced indexing reads into a copy first, so overlapping source and target are safe.
        storage[:, :, target_slots[start:stop]] = storage[:, :, source_slots[start:stop]]
