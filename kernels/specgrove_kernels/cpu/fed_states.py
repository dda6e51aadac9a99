"""Maps of states and features kept as int8 with one scale for each input, as feature-fed SSMs bring them.

x @ (scale[:, None] * steps)  =  (x * scale) @ steps          the scale goes to the row: nothing is rounded anew
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from specgrove_kernels.cpu.addresses import floats_at
from specgrove_kernels.cpu.compiled import compiled, told_after
from specgrove_kernels.cpu.int8_rows import multiply_rows, padded_width, split_row

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


_log = logging.getLogger(__name__)


def prepare() -> None:
    """Compile what is here, or fetch it from where it is kept: at load, not in the first request."""
    nothing = np.empty((0, 1), dtype=np.float32)
    with told_after(1.0, _log, "compiling the feature maps of SSMs for this processor"):
        map_rows(np.empty((0, 4), dtype=np.int64), np.empty((2, 0), dtype=np.int64), nothing, nothing)


@compiled
def map_rows(
    maps: Ints,  # [M, 4]: as `Int8Rows.addresses`, and the address of the inputs' scales
    numbers: Ints,  # [2, N]: which map a row goes through (-1: none); the address of what is added, float32 [O], or 0
    rows: Floats,  # [N, I]
    out: Floats,  # [N, O], written
) -> None:
    """Every row through its own map; rows of no map stay as they are."""
    num_rows, width = rows.shape
    num_outputs = out.shape[1]
    scaled = np.empty(width, dtype=np.float32)
    split = np.empty((2 * num_rows, padded_width(width)), dtype=np.int8)
    sums = np.empty(2 * num_rows, dtype=np.int32)
    sizes = np.empty(num_rows, dtype=np.float32)
    mapped = np.empty(num_rows * num_outputs, dtype=np.float32)
    for row in range(num_rows):
        if numbers[0, row] < 0:
            for channel in range(num_outputs):
                out[row, channel] = rows[row, channel]
    for number in range(len(maps)):
        count = 0
        scales = floats_at(maps[number, 3], width)
        for row in range(num_rows):
            if numbers[0, row] == number:
                for channel in range(width):
                    scaled[channel] = rows[row, channel] * scales[channel]
                split_row(scaled, split[2 * count], split[2 * count + 1], sums, sizes, count)
                count += 1
        if count == 0:
            continue
        multiply_rows(maps[number], num_outputs, split, sums, sizes, count, mapped, 0, num_outputs, False)
        count = 0
        for row in range(num_rows):
            if numbers[0, row] == number:
                for channel in range(num_outputs):
                    out[row, channel] = mapped[count * num_outputs + channel]
                if numbers[1, row] != 0:
                    added = floats_at(numbers[1, row], num_outputs)
                    for channel in range(num_outputs):
                        out[row, channel] += added[channel]
                count += 1
