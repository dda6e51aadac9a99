"""Keys and values of new rows into their slots, in plain torch. `kv_write_triton` does the same in one launch."""

from __future__ import annotations

import torch

NO_SLOT = -1  # a row that pads a bucket: nothing of it is written


def write_kv(
    key: torch.Tensor,  # [N, H_kv, D]
    value: torch.Tensor,  # [N, H_kv, D]
    storage: torch.Tensor,  # [2, slots, H_kv, D], changed in place; converts to its dtype
    slots: torch.Tensor,  # int64 [N], each slot at most once; `NO_SLOT` writes nothing
) -> None:
    """Row i's key and value stand in slot `slots[i]` afterwards, every other slot is as it was."""
    written = slots != NO_SLOT
    storage[0, slots[written]] = key[written].to(storage.dtype)
    storage[1, slots[written]] = value[written].to(storage.dtype)
