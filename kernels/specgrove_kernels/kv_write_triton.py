# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Keys and values of new rows into their slots in one launch: one program for each row, keys and values apart."""

import torch
import triton
import triton.language as tl


def write_kv(
    key: torch.Tensor,  # [N, H_kv, D]
    value: torch.Tensor,  # [N, H_kv, D]
    storage: torch.Tensor,  # [2, slots, H_kv, D], changed in place; converts to its dtype
    slots: torch.Tensor,  # int64 [N], each slot at most once; `NO_SLOT` (negative) writes nothing
) -> None:
    """Row i's key and value stand in slot `slots[i]` afterwards, every other slot is as it was."""
    num_rows, num_kv_heads, head_dim = key.shape
    if storage.device.type == "cpu":
        # To bfloat16 the interpreter cuts bits off where GPUs and torch round.
        key, value = key.to(storage.dtype), value.to(storage.dtype)
    if key.stride(2) != 1 or value.stride(2) != 1:
        key, value = key.contiguous(), value.contiguous()
    _write_row[(num_rows, 2)](
        key,
        value,
        storage,
        slots.contiguous(),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        storage.stride(0),
        storage.stride(1),
        WIDTH=num_kv_heads * head_dim,
        HEAD_DIM=head_dim,
        PADDED=triton.next_power_of_2(num_kv_heads * head_dim),
    )


@triton.jit
def _write_row(
    key,
    value,
    storage,
    slots,
    stride_key_row,
    stride_key_head,
    stride_value_row,
    stride_value_head,
    stride_side,
    stride_slot,
    WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    columns = tl.arange(0, PADDED)
    is_column = columns < WIDTH
    head = columns // HEAD_DIM
    feature = columns % HEAD_DIM
    target = storage + slot * stride_slot + columns
    if tl.program_id(1) == 0:
        new_key = tl.load(key + row * stride_key_row + head * stride_key_head + feature, mask=is_column)
        tl.store(target, new_key.to(storage.dtype.element_ty), mask=is_column)
    else:
        new_value = tl.load(value + row * stride_value_row + head * stride_value_head + feature, mask=is_column)
        tl.store(target + stride_side, new_value.to(storage.dtype.element_ty), mask=is_column)
