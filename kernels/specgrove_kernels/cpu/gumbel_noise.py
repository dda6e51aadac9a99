"""The noise of sampling for chosen tokens, in one pass: what `gumbel_at` of `sampling/noise.py` gives.

Logarithms are taken in float64 and rounded once; the last bit may differ from torch's about once in 2**28 values.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import numpy.typing as npt

from specgrove_kernels.cpu.compiled import compiled, told_after

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_NUM_ROUNDS = 10
_WORDS = np.uint64(4)

Ints = npt.NDArray[np.int64]
_log = logging.getLogger(__name__)


@compiled
def gumbel_noise(
    seed: int,  # of 64 bits, as a signed number
    stream: int,
    positions: Ints,  # [N]
    tokens: Ints,  # [N, M]
    noise: npt.NDArray[np.float32],  # [N, M], written
) -> None:
    """Standard Gumbel noise of every (position, token)."""
    for row in range(len(positions)):
        for place in range(tokens.shape[1]):
            token = np.uint64(tokens[row, place])
            word = _philox_word(np.uint64(seed), np.uint64(stream), np.uint64(positions[row]), token)
            uniform = (np.float64(word) + 0.5) * 2.0**-32
            noise[row, place] = np.float32(-math.log(-math.log(uniform)))


def prepare() -> None:
    """Compile what is here, or fetch it from where it is kept: at load, not in the first request."""
    nobody = np.empty(0, dtype=np.int64)
    with told_after(1.0, _log, "compiling the noise of sampled drafts for this processor"):
        gumbel_noise(0, 0, nobody, nobody.reshape(0, 1), np.empty((0, 1), dtype=np.float32))


@compiled
def _philox_word(seed: np.uint64, stream: np.uint64, position: np.uint64, token: np.uint64) -> np.uint64:
    """Philox4x32 with 10 rounds: the word that belongs to `token` of the four of its group."""
    word_0, word_1 = token // _WORDS, position & _MASK
    word_2, word_3 = position >> _HALF, stream
    key_0, key_1 = seed & _MASK, seed >> _HALF
    for _ in range(_NUM_ROUNDS):
        product_0, product_1 = word_0 * _MULTIPLIER_0, word_2 * _MULTIPLIER_1
        word_0, word_1 = (product_1 >> _HALF) ^ word_1 ^ key_0, product_1 & _MASK
        word_2, word_3 = (product_0 >> _HALF) ^ word_3 ^ key_1, product_0 & _MASK
        key_0, key_1 = (key_0 + _WEYL_0) & _MASK, (key_1 + _WEYL_1) & _MASK
    number = token % _WORDS
    if number == np.uint64(0):
        return word_0
    if number == np.uint64(1):
        return word_1
    return word_2 if number == np.uint64(2) else word_3
