"""Products of a few rows with an int8 matrix, for compiled functions on CPUs with AVX512 VNNI.

    weights   [O / 64][K / 4][64][4], unsigned: int8 + 128       one stream of memory, 64 outputs of 4 inputs at a time
    rows      [2 N, K], int8: a coarse and a fine one for each   4 inputs of a row in every lane, summed up in int32

        x = size * (coarse + fine / 254) / 127                   the split of `runtime/int8_linear.py`

The sums are of whole numbers: a row's result does not depend by one bit on the rows beside it. What the 128 adds to a
sum is 128 times the sum of the row, which is known before. Missing outputs and inputs are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config

from specgrove_kernels.cpu.addresses import emitted, floats_at
from specgrove_kernels.cpu.compiled import compiled
from specgrove_kernels.cpu.large_pages import room_for

BLOCK = 64  # outputs that are summed up at once: four registers for each split row
INPUTS = 4  # inputs that one instruction multiplies
_LANES = 16
_STEPS = 127
_LEAST_SIZE = np.float32(1e-12)
_COARSE = np.float32(1.0 / _STEPS)
_FINE = np.float32(1.0 / (2 * _STEPS))

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.int8]
Sums = npt.NDArray[np.int32]


def is_supported() -> bool:
    """Whether Numba compiles for a processor with AVX512 VNNI. Others would stop the process, not raise."""
    settings: Any = config  # its names are made when it is imported
    if settings.CPU_NAME is not None or settings.CPU_FEATURES is not None:
        return "+avx512vnni" in (settings.CPU_FEATURES or "")
    return bool(binding.get_host_cpu_features().get("avx512vnni", False))


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """A matrix as `multiply_rows` reads it. Whoever holds its addresses holds it too."""

    weights: torch.Tensor  # uint8 [blocks, K / 4, 64, 4]
    scales: torch.Tensor  # float32 [blocks * 64]
    bias: torch.Tensor | None  # float32 [blocks * 64]
    num_outputs: int

    @classmethod
    def of(cls, steps: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None) -> Int8Rows:
        """Lay out `steps` (int8 [O, K]), one of `scales` (float [O]) for each row; `bias` is float [O] or None."""
        num_outputs, num_inputs = steps.shape
        blocks, groups = -(-num_outputs // BLOCK), -(-num_inputs // INPUTS)
        padded = torch.full((blocks * BLOCK, groups * INPUTS), 128, dtype=torch.uint8)
        padded[:num_outputs, :num_inputs] = (steps.to(torch.int16) + 128).to(torch.uint8)
        weights = torch.from_numpy(room_for(padded.numel())).view(blocks, groups, BLOCK, INPUTS)
        weights.copy_(padded.view(blocks, BLOCK, groups, INPUTS).transpose(1, 2))
        return cls(weights, _padded(scales, blocks), None if bias is None else _padded(bias, blocks), num_outputs)

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Of the weights, the scales and the bias (0 for none)."""
        return self.weights.data_ptr(), self.scales.data_ptr(), 0 if self.bias is None else self.bias.data_ptr()


def _padded(values: torch.Tensor, blocks: int) -> torch.Tensor:
    padded = torch.zeros(blocks * BLOCK)
    padded[: len(values)] = values
    return padded


@compiled
def padded_width(num_inputs: int) -> int:
    """How long a split row is."""
    return -(-num_inputs // INPUTS) * INPUTS


@compiled
def split_row(row: Floats, coarse: Bytes, fine: Bytes, sums: Sums, sizes: Floats, at: int) -> None:
    """Write `row` as two rows of `padded_width`; their sums to `sums[2 * at]` and the next, its size to `sizes[at]`."""
    width = len(row)
    bits = row.view(np.int32)
    largest = np.int32(0)  # floats without their sign are in the order of their bits
    for channel in range(width):
        largest = max(largest, bits[channel] & np.int32(0x7FFFFFFF))
    found = np.empty(1, dtype=np.int32)
    found[0] = largest
    size = max(found.view(np.float32)[0], _LEAST_SIZE)
    shrink = np.float32(_STEPS) / size
    sum_coarse = np.int32(0)
    sum_fine = np.int32(0)
    for channel in range(width):
        scaled = row[channel] * shrink
        whole = np.rint(scaled)
        rest = np.rint((scaled - whole) * np.float32(2 * _STEPS))
        coarse_step, fine_step = np.int32(whole), np.int32(rest)
        coarse[channel] = coarse_step
        fine[channel] = fine_step
        sum_coarse += coarse_step
        sum_fine += fine_step
    for channel in range(width, len(coarse)):
        coarse[channel] = fine[channel] = 0
    sums[2 * at] = sum_coarse
    sums[2 * at + 1] = sum_fine
    sizes[at] = size


@compiled
def multiply_rows(
    addresses: npt.NDArray[np.int64],  # [3]: as `Int8Rows.addresses`
    num_outputs: int,
    split: Bytes,  # [2 N, padded_width(K)]
    sums: Sums,  # [2 N]
    sizes: Floats,  # [N]
    num_rows: int,
    out: Floats,  # flat
    first: int,  # place of row 0's first output in `out`
    stride: int,  # from row to row
    is_added: bool,  # to what stands in `out`
) -> None:
    """Multiply `num_rows` split rows with a matrix."""
    width = split.shape[1]
    groups = width // INPUTS
    # sums of 4 inputs each, 64 outputs: in steps of 3 rows, 24 registers
    found = np.empty((6, BLOCK), dtype=np.int32)
    num_blocks = (num_outputs + BLOCK - 1) // BLOCK
    scales = floats_at(addresses[1], num_blocks * BLOCK)
    has_bias = addresses[2] != 0
    bias = floats_at(addresses[2] if has_bias else addresses[1], num_blocks * BLOCK)
    for block in range(num_blocks):
        weights = addresses[0] + block * groups * INPUTS * BLOCK
        start = block * BLOCK
        used = min(BLOCK, num_outputs - start)
        row = 0
        while row < num_rows:
            left = num_rows - row
            # four rows are two and two, five three and two
            step = left if left < 4 else (2 if left == 4 else 3)
            if step == 1:
                _sum_2(weights, split, 2 * row, groups, found)
            elif step == 2:
                _sum_4(weights, split, 2 * row, groups, found)
            else:
                _sum_6(weights, split, 2 * row, groups, found)
            for place in range(step):
                of_coarse = np.int32(128) * sums[2 * (row + place)]
                of_fine = np.int32(128) * sums[2 * (row + place) + 1]
                unit = sizes[row + place] * _COARSE
                at = first + (row + place) * stride + start
                for output in range(used):
                    coarse, fine = found[2 * place, output], found[2 * place + 1, output]
                    both = np.float32(coarse - of_coarse) + np.float32(fine - of_fine) * _FINE
                    value = both * (scales[start + output] * unit)
                    if has_bias:
                        value += bias[start + output]
                    out[at + output] = out[at + output] + value if is_added else value
            row += step


def _make_sum(num_split: int) -> Any:
    """A function that leaves the sums of `num_split` split rows from one on with 64 outputs in `found`."""

    @emitted
    def sum_block(typing_context: Any, weights: Any, split: Any, first: Any, groups: Any, found: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, split_type, _, _, found_type = signature.args
            address, rows, number, count, target = arguments
            rows_array = context.make_array(split_type)(context, builder, rows)
            width = cgutils.unpack_tuple(builder, rows_array.shape)[1]
            target_array = context.make_array(found_type)(context, builder, target)
            sums = _summed(builder, address, rows_array.data, width, number, count, num_split)
            flat = builder.bitcast(target_array.data, _V16.as_pointer())
            for place, total in enumerate(sums):
                builder.store(total, builder.gep(flat, [ir.Constant(_I64, place)]), align=4)
            return context.get_dummy_value()

        return types.none(types.int64, split, types.int64, types.int64, found), generate

    return sum_block


_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_V16, _V64 = ir.VectorType(_I32, _LANES), ir.VectorType(_I8, BLOCK)


def _summed(
    builder: Any, weights: Any, split: Any, width: Any, first: Any, count: Any, num_split: int
) -> list[Any]:  # [num_split * 4], 16 outputs each
    """A loop over groups of four inputs. `first` is the first split row, `width` their length in bytes."""
    parts = BLOCK // _LANES
    kind = ir.FunctionType(_V16, [_V16, _V64, _V64])
    multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
    rows = [
        builder.gep(split, [builder.mul(builder.add(first, ir.Constant(_I64, number)), width)])
        for number in range(num_split)
    ]
    start = builder.inttoptr(weights, _V64.as_pointer())
    before = builder.block
    loop, end = builder.append_basic_block("groups"), builder.append_basic_block("groups_end")
    builder.branch(loop)
    builder.position_at_end(loop)
    group = builder.phi(_I64)
    group.add_incoming(ir.Constant(_I64, 0), before)
    totals = [builder.phi(_V16) for _ in range(num_split * parts)]
    for total in totals:
        total.add_incoming(ir.Constant(_V16, None), before)
    blocks = [
        builder.load(
            builder.gep(start, [builder.add(builder.mul(group, ir.Constant(_I64, parts)), ir.Constant(_I64, part))]),
            align=64,
        )
        for part in range(parts)
    ]
    following = []
    for number, row in enumerate(rows):
        words = builder.bitcast(row, _I32.as_pointer())
        four = builder.load(builder.gep(words, [group]), align=1)
        one = builder.insert_element(ir.Constant(_V16, ir.Undefined), four, ir.Constant(_I32, 0))
        everywhere = builder.shuffle_vector(one, ir.Constant(_V16, ir.Undefined), ir.Constant(_V16, [0] * _LANES))
        inputs = builder.bitcast(everywhere, _V64)
        for part in range(parts):
            following.append(builder.call(multiply, [totals[number * parts + part], blocks[part], inputs]))
    next_group = builder.add(group, ir.Constant(_I64, 1))
    group.add_incoming(next_group, loop)
    for total, value in zip(totals, following, strict=True):
        total.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", next_group, count), loop, end)
    builder.position_at_end(end)
    return following


_sum_2, _sum_4, _sum_6 = _make_sum(2), _make_sum(4), _make_sum(6)
