# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Moving accepted paths next to their prefixes, all layers and sequences in one launch.

One program owns some columns of one sequence in one layer (keys or values) and does the moves in order, so overlaps
need no copy: nobody else touches its columns, and a path ascends, so a target is never the source of a later move.
"""

import torch
import triton
import triton.language as tl

_MAX_COLUMNS = 1024


def compact_kv(
    storage: torch.Tensor,  # [layers, 2, slots, H_kv, D], contiguous, changed in place
    source_slots: torch.Tensor,  # int64 [M], the moves of all sequences, each sequence's in ascending order of its rows
    target_slots: torch.Tensor,  # int64 [M]
    move_starts: torch.Tensor,  # int32 [B + 1], where each sequence's moves start
) -> None:
    """Slot `target_slots[i]` holds what `source_slots[i]` held before, in every layer, keys and values."""
    num_layers, sides, num_slots, num_kv_heads, head_dim = storage.shape
    width = num_kv_heads * head_dim
    columns = min(_MAX_COLUMNS, triton.next_power_of_2(width))
    _move_columns[(num_layers * sides, triton.cdiv(width, columns), len(move_starts) - 1)](
        storage,
        source_slots.contiguous(),
        target_slots.contiguous(),
        move_starts,
        num_slots,
        WIDTH=width,
        COLUMNS=columns,
    )


@triton.jit
def _move_columns(storage, sources, targets, move_starts, num_slots, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    base = storage + tl.program_id(0).to(tl.int64) * num_slots * WIDTH
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < WIDTH
    seq = tl.program_id(2)
    for move in range(tl.load(move_starts + seq), tl.load(move_starts + seq + 1)):
        source = tl.load(sources + move)
        target = tl.load(targets + move)
        moved = tl.load(base + source * WIDTH + columns, mask=is_column)
        tl.debug_barrier()  # threads may load and store different columns: all have read before one writes
        tl.store(base + target * WIDTH + columns, moved, mask=is_column)
