"""Shapes that decode steps are padded to: few enough to be recorded, close enough that padding costs little.

rows    1 2 4 8 12 16 24 32 48 64 96 128 192 256        padding rows write nowhere and are asked nothing
tiles   powers of two                                   padding tiles stop at once
blocks  64 256 1024 ... of a block table                the kernel reads what the prefix needs
words   powers of two of 64 rows in flight
"""

from __future__ import annotations

from bisect import bisect_left

from specgrove_kernels.paged_batch import BatchShape, power_of_two_above

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_FEWEST_BLOCKS = 64
_BLOCK_STEP = 4


def bucket_of(shape: BatchShape) -> BatchShape | None:
    """The bucket of a step of `shape`; None for one with more rows than the largest, which runs as it is."""
    if shape.rows > ROWS[-1]:
        return None
    blocks = _FEWEST_BLOCKS
    while blocks < shape.blocks:
        blocks *= _BLOCK_STEP
    return BatchShape(
        rows=ROWS[bisect_left(ROWS, shape.rows)],
        tiles=power_of_two_above(shape.tiles),
        rows_per_tile=shape.rows_per_tile,
        blocks=blocks,
        words=power_of_two_above(shape.words),
    )
