"""The noise of sampling: standard Gumbel, a pure function of (seed, position, token).

    seed (64 bit) ──────────── key (k0, k1) ──┐
    position, token // 4 ───── counter ───────┤ Philox4x32, 10 rounds ──▶ 4 words, one for each of 4 tokens
                                              │        word w ──▶ u = (w + 1/2) / 2**32 ──▶ -log(-log u)

Philox is the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). Integer
arithmetic gives the same words on every machine and device; the two logarithms are taken in float64 and rounded to
float32 once, so that a last-bit difference between mathematical libraries does not survive the rounding (it would have
to straddle a rounding boundary: about one value in 2**28, by one float32 ulp).

One seed has several streams, kept apart by the last word of the counter (`Stream`).

With this noise `argmax(log target_probs + gumbel)` is an exact draw from `target_probs` (Gumbel-max), and drafter and
verifier, which share seed and position, draw alike (Daliri, Musco, Suresh 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import torch

from specgrove.sampling.rules import Rule

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_MASK = 0xFFFFFFFF
_NUM_ROUNDS = 10
_WORDS = 4

Word = TypeVar("Word", int, torch.Tensor)


class Stream(IntEnum):
    """Uses of a seed that know nothing of one another. What is drawn from two of them is independent."""

    SHARED = 0x53504743  # the noise of `coupled`: drafter and verifier draw alike from it
    OWN = 0x53504F57  # the target's own draws under `naive` and `mss`, which no drafter may know
    TRIALS = 0x53505452  # whether a child is accepted, under `mss`
    DRAFT = 0x53504452  # a drafter's draws of children, under a seed that the drafter alone has


def noise_stream(rule: Rule) -> Stream:
    """Where the target's own token comes from under `rule`.

    Never the shared noise but under `coupled`: a drafter that ranks or draws by the noise that also decides what is
    accepted makes the two depend on each other, and `naive` and `mss` are lossless only while they are independent.
    """
    return Stream.SHARED if rule is Rule.COUPLED else Stream.OWN


def philox_4x32(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> tuple[Word, Word, Word, Word]:
    """Four 32-bit words for each counter: plain integers, or int64 tensors of one shape (or broadcastable); values
    below 2**32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        # A 32 x 32 bit product wraps in int64, but its bits are right; the mask undoes the sign of the shift.
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            ((product_1 >> 32) & _MASK) ^ c1 ^ k0,
            product_1 & _MASK,
            ((product_0 >> 32) & _MASK) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def _gumbel_of_words(words: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel float32 from uniform 32-bit words (int64, any shape)."""
    uniform = (words.to(torch.float64) + 0.5) * 2.0**-32
    return uniform.log_().neg_().log_().neg_().to(torch.float32)


def _words(seed: int, positions: torch.Tensor, groups: torch.Tensor, stream: Stream) -> tuple[torch.Tensor, ...]:
    counter = (groups, positions & _MASK, (positions >> 32) & _MASK, torch.full_like(groups, stream))
    return philox_4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))


def uniform(seed: int, position: int, number: int, stream: Stream) -> float:
    """The `number`-th uniform value at a position, strictly between 0 and 1; one of 2**32 values."""
    # Plain integers: a tensor of one value costs sixty dispatches.
    counter = (number, position & _MASK, (position >> 32) & _MASK, int(stream))
    return (philox_4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))[0] + 0.5) * 2.0**-32


def gumbel_row(
    seed: int,
    position: int,
    vocab_size: int,
    *,
    device: torch.device | str = "cpu",
    stream: Stream = Stream.SHARED,
) -> torch.Tensor:  # float32 [V]
    """The noise of every token of the vocabulary at one absolute position (the index of the token being drawn)."""
    groups = torch.arange((vocab_size + _WORDS - 1) // _WORDS, dtype=torch.int64, device=device)
    words = torch.stack(_words(seed, torch.full_like(groups, position), groups, stream), dim=-1)
    return _gumbel_of_words(words).reshape(-1)[:vocab_size]


def gumbel_at(seed: int, positions: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:  # float32, broadcast shape
    """The shared noise of chosen (position, token) pairs; int64 tensors that broadcast. Equal to `gumbel_row`."""
    positions, token_ids = torch.broadcast_tensors(positions, token_ids)
    words = torch.stack(_words(seed, positions, token_ids // _WORDS, Stream.SHARED), dim=-1)
    chosen = words.gather(-1, (token_ids % _WORDS).unsqueeze(-1)).squeeze(-1)
    return _gumbel_of_words(chosen)


class NoiseRows:
    """The noise rows that one generation needs, each made once: a tree of depth d shares d + 1 rows among its nodes."""

    def __init__(
        self, seed: int, vocab_size: int, device: torch.device | str = "cpu", stream: Stream = Stream.SHARED
    ) -> None:
        self._seed = seed
        self._stream = stream
        self._vocab_size = vocab_size
        self._device = device
        self._rows: dict[int, torch.Tensor] = {}

    def rows(self, positions: Sequence[int]) -> torch.Tensor:  # float32 [len(positions), V]
        """Rows for ascending-first `positions`; rows below the lowest one asked for are forgotten."""
        lowest = min(positions)
        self._rows = {position: row for position, row in self._rows.items() if position >= lowest}
        for position in positions:
            if position not in self._rows:
                self._rows[position] = gumbel_row(
                    self._seed, position, self._vocab_size, device=self._device, stream=self._stream
                )
        return torch.stack([self._rows[position] for position in positions])
