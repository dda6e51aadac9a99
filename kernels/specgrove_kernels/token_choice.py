"""The target's token after each row with the noise of `coupled`, in plain torch.

    choice(row) = argmax over x of (logits(row)[x] - max) / T + gumbel(seed, position, x)        T = 0: argmax of logits

The same function as `specgrove.sampling` (a test holds the two together); it stands here a second time because kernels
know nothing of the library above them. Top-k, top-p, min-p and suppression happen before: what they remove is at -inf.
Scores that are already shifted and scaled go in with temperature 1 and come through unchanged, bit by bit.
"""

from __future__ import annotations

import torch

SHARED_STREAM = 0x53504743  # `Stream.SHARED`
_MASK = 0xFFFFFFFF
_WORDS = 4


def choose_tokens(
    logits: torch.Tensor,  # float32 [N, V]
    temperatures: torch.Tensor,  # float32 [N]; 0 is greedy
    seeds: torch.Tensor,  # int64 [N], the 64 bits of the seed
    positions: torch.Tensor,  # int64 [N], absolute index of the token drawn after each row
    *,
    stream: int = SHARED_STREAM,
) -> torch.Tensor:  # int64 [N]
    """The token of each row; the lowest id where scores tie. Rows are independent of one another."""
    drawn = temperatures > 0
    divisors = torch.where(drawn, temperatures, 1.0)[:, None]
    scores = (logits - logits.amax(dim=-1, keepdim=True)) / divisors
    noise = gumbel(philox_words(seeds, positions, logits.shape[1], stream))
    return torch.where(drawn, (scores + noise).argmax(dim=-1), logits.argmax(dim=-1))


def philox_words(
    seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int, stream: int = SHARED_STREAM
) -> torch.Tensor:
    """The 32 random bits of every token: int64 [N], int64 [N] -> int64 [N, V], values below 2**32. Philox4x32-10."""
    groups = torch.arange(-(-vocab_size // _WORDS), dtype=torch.int64, device=seeds.device)[None, :]
    at, seed = positions[:, None], seeds[:, None]
    c0, c1, c2, c3 = torch.broadcast_tensors(groups, at & _MASK, (at >> 32) & _MASK, torch.full_like(at, stream))
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        # A 32 x 32 bit product wraps in int64, but its bits are right; the mask undoes the sign of the shift.
        product_0, product_1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((product_1 >> 32) & _MASK) ^ c1 ^ k0,
            product_1 & _MASK,
            ((product_0 >> 32) & _MASK) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return torch.stack([c0, c1, c2, c3], dim=-1).flatten(1)[:, :vocab_size]


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel float32 from 32 random bits each (int64, any shape)."""
    uniform = (words.to(torch.float64) + 0.5) * 2.0**-32
    return uniform.log_().neg_().log_().neg_().to(torch.float32)
