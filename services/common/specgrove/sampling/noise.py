"""The noise of `coupled` sampling: standard Gumbel, a pure function of (seed, position, token).

    seed (64 bit) ──────────── key (k0, k1) ──┐
    position, token // 4 ───── counter ───────┤ Philox4x32, 10 rounds ──▶ 4 words, one for each of 4 tokens
                                              │        word w ──▶ u = (w + 1/2) / 2**32 ──▶ -log(-log u)

Philox is the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). Integer
arithmetic gives the same words on every machine and device; the two logarithms are taken in float64 and rounded to
float32 once, so that a last-bit difference between mathematical libraries does not survive the rounding (it would have
to straddle a rounding boundary: about one value in 2**28, by one float32 ulp).

With this noise `argmax(log target_probs + gumbel)` is an exact draw from `target_probs` (Gumbel-max), and drafter and
verifier, which share seed and position, draw alike (Daliri, Musco, Suresh 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_MASK = 0xFFFFFFFF
_NUM_ROUNDS = 10
_DOMAIN = 0x53504743  # keeps this stream apart from any other use of the same seed
_WORDS = 4


def philox_4x32(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Four 32-bit words for each counter; all tensors int64 of one shape (or broadcastable), values below 2**32."""
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


def _words(seed: int, positions: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, ...]:
    domain = torch.full_like(groups, _DOMAIN)
    counter = (groups, positions & _MASK, (positions >> 32) & _MASK, domain)
    return philox_4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))


def gumbel_row(
    seed: int, position: int, vocab_size: int, *, device: torch.device | str = "cpu"
) -> torch.Tensor:  # float32 [V]
    """The noise of every token of the vocabulary at one absolute position (the index of the token being drawn)."""
    groups = torch.arange((vocab_size + _WORDS - 1) // _WORDS, dtype=torch.int64, device=device)
    words = torch.stack(_words(seed, torch.full_like(groups, position), groups), dim=-1)
    return _gumbel_of_words(words).reshape(-1)[:vocab_size]


def gumbel_at(seed: int, positions: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:  # float32, broadcast shape
    """The noise of chosen (position, token) pairs; int64 tensors that broadcast. Equal to `gumbel_row` entries."""
    positions, token_ids = torch.broadcast_tensors(positions, token_ids)
    words = torch.stack(_words(seed, positions, token_ids // _WORDS), dim=-1)
    chosen = words.gather(-1, (token_ids % _WORDS).unsqueeze(-1)).squeeze(-1)
    return _gumbel_of_words(chosen)


class NoiseRows:
    """The noise rows that one generation needs, each made once: a tree of depth d shares d + 1 rows among its nodes."""

    def __init__(self, seed: int, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self._seed = seed
        self._vocab_size = vocab_size
        self._device = device
        self._rows: dict[int, torch.Tensor] = {}

    def rows(self, positions: Sequence[int]) -> torch.Tensor:  # float32 [len(positions), V]
        """Rows for ascending-first `positions`; rows below the lowest one asked for are forgotten."""
        lowest = min(positions)
        self._rows = {position: row for position, row in self._rows.items() if position >= lowest}
        for position in positions:
            if position not in self._rows:
                self._rows[position] = gumbel_row(self._seed, position, self._vocab_size, device=self._device)
        return torch.stack([self._rows[position] for position in positions])
