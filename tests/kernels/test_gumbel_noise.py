"""The compiled noise of sampling: the library's own, bit for bit but for one last bit in many millions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specgrove.sampling.noise import Stream, gumbel_at

pytest.importorskip("numba")
from specgrove_kernels.cpu.gumbel_noise import gumbel_noise


@pytest.mark.parametrize("seed", [0, 1, 12345678901234567, 2**63 - 1, 2**63, 2**64 - 1])
def test_it_is_the_shared_noise(seed: int) -> None:
    positions = np.array([0, 1, 77, 2**31, 2**35 + 5])
    tokens = np.random.default_rng(seed % 1000).integers(0, 200_000, (5, 300))
    noise = np.empty((5, 300), dtype=np.float32)
    gumbel_noise(seed - (seed >> 63 << 64), int(Stream.SHARED), positions, tokens, noise)
    expected = gumbel_at(seed, torch.from_numpy(positions)[:, None], torch.from_numpy(tokens)).numpy()
    np.testing.assert_array_max_ulp(noise, expected, 1)
    assert (noise == expected).mean() > 0.999
