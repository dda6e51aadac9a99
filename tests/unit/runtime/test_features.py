"""Features survive the wire, and what is no feature vector is not taken for one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specgrove.runtime.features import decode_parts, encode_parts, unit_rms


def test_parts_come_back_as_they_went_within_half_precision() -> None:
    states = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(1)) * 300
    encoded = encode_parts(states)
    assert encoded.dtype == np.dtype("<f2")
    decoded = decode_parts(encoded[1].tobytes(), 16)
    assert decoded is not None
    torch.testing.assert_close(decoded, unit_rms(states[1]), atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(decoded.square().mean(-1), torch.ones(4), atol=2e-3, rtol=0)


def test_a_row_of_zeros_stays_one() -> None:
    assert not encode_parts(torch.zeros(1, 8)).any()


@pytest.mark.parametrize(
    "values",
    [
        b"",
        b"\0",
        b"\0" * 15,
        np.array([1, 2, np.inf, 4], "<f2").tobytes(),
        np.array([1, 2, np.nan, 4], "<f2").tobytes(),
    ],
)
def test_broken_bytes_are_no_parts(values: bytes) -> None:
    assert decode_parts(values, 4) is None
