"""Staged arrays: the same values, aligned for Triton, and written in place where a bucket has its own bytes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrove_kernels.staging import num_bytes_of, stage

CPU = torch.device("cpu")
_ARRAYS = st.lists(
    st.tuples(
        st.sampled_from([np.int32, np.int64, np.float32]), st.lists(st.integers(0, 5), min_size=1, max_size=3)
    ).map(lambda kind: np.arange(np.prod(kind[1]), dtype=kind[0]).reshape(kind[1])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(_ARRAYS)
def test_every_array_arrives_as_it_was(arrays: list[np.ndarray]) -> None:
    tensors = stage(arrays, CPU)
    for tensor, array in zip(tensors, arrays, strict=True):
        assert torch.equal(tensor, torch.from_numpy(array))
    bases = [tensor.data_ptr() - tensors[0].data_ptr() for tensor in tensors if tensor.numel()]
    assert all(base % 16 == bases[0] % 16 for base in bases)


def test_tensors_staged_before_see_what_is_staged_over_them() -> None:
    first = [np.array([1, 2, 3], dtype=np.int32), np.array([[4], [5]], dtype=np.int64)]
    buffer = torch.empty(num_bytes_of(first), dtype=torch.uint8)
    before = stage(first, CPU, buffer)
    stage([array * 10 for array in first], CPU, buffer)
    assert [tensor.tolist() for tensor in before] == [[10, 20, 30], [[40], [50]]]
