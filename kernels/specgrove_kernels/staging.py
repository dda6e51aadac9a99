"""Many small arrays to a device in one transfer.

    host, pinned   | array 0 | pad | array 1 | array 2 | ...     one copy ──▶ the same bytes on the device, as views

A step hands a dozen tables to the kernels; on a GPU each transfer of its own would cost more than all their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_ALIGNMENT = 16  # bytes: what Triton may assume of a pointer
_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64, np.dtype(np.float32): torch.float32}


def stage(
    arrays: Sequence[np.ndarray], device: torch.device, into: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """`arrays` (int32, int64 or float32) as tensors on `device`, in one copy that does not wait for the device.

    `into` (uint8 [num_bytes_of(arrays)], on the device) is written instead of new memory: tensors staged into it
    before, from arrays of the same shapes, then hold the new values.
    """
    offsets = _offsets(arrays)
    # Fresh pinned memory for each step: torch keeps it until the copy has been made, whoever forgets it before.
    host = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    as_bytes = host.numpy()
    for offset, array in zip(offsets, arrays, strict=False):
        as_bytes[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    staged = host.to(device, non_blocking=True) if into is None else into.copy_(host, non_blocking=True)
    return tuple(_view(staged, offset, array) for offset, array in zip(offsets, arrays, strict=False))


def num_bytes_of(arrays: Sequence[np.ndarray]) -> int:
    """What `arrays` take side by side."""
    return _offsets(arrays)[-1]


def _offsets(arrays: Sequence[np.ndarray]) -> list[int]:
    """Where each array begins, and where the last one ends."""
    offsets = [0]
    for array in arrays:
        offsets.append(offsets[-1] + -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT)
    return offsets


def _view(staged: torch.Tensor, offset: int, array: np.ndarray) -> torch.Tensor:
    return staged[offset : offset + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
