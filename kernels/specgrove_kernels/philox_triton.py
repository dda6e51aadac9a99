# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The noise of sampling on the device: the words and the Gumbel values of `token_choice`, bit by bit.

The integers are int64 as in the reference: products of two 32-bit numbers wrap, but their bits are right.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def philox(groups, seed, position, stream):
    """Four words (int64 below 2**32) for each group of four tokens: Philox4x32 with 10 rounds."""
    c0 = groups.to(tl.int64)
    zeros = c0 * 0
    c1 = zeros + (position & 0xFFFFFFFF)
    c2 = zeros + ((position >> 32) & 0xFFFFFFFF)
    c3 = zeros + stream
    k0 = seed & 0xFFFFFFFF
    k1 = (seed >> 32) & 0xFFFFFFFF
    for _ in tl.static_range(10):
        product_0 = c0 * 0xD2511F53
        product_1 = c2 * 0xCD9E8D57
        c0 = ((product_1 >> 32) & 0xFFFFFFFF) ^ c1 ^ k0
        c2 = ((product_0 >> 32) & 0xFFFFFFFF) ^ c3 ^ k1
        c1 = product_1 & 0xFFFFFFFF
        c3 = product_0 & 0xFFFFFFFF
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


@triton.jit
def gumbel(words):
    """Standard Gumbel float32 of each word; the logarithms in float64, rounded once."""
    uniform = (words.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2**-32
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


def philox_words(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int, stream: int) -> torch.Tensor:
    """The words alone, to be compared with the reference: int64 [N], int64 [N] -> int64 [N, V]."""
    words = torch.empty((len(seeds), vocab_size), dtype=torch.int64, device=seeds.device)
    groups = 256
    _write_words[(len(seeds), triton.cdiv(vocab_size, 4 * groups))](
        words, seeds, positions, int(stream), vocab_size, GROUPS=groups
    )
    return words


@triton.jit
def _write_words(output, seeds, positions, stream, vocab_size, GROUPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    w0, w1, w2, w3 = philox(groups, tl.load(seeds + row), tl.load(positions + row), stream)
    first = output + row * vocab_size + groups * 4
    tl.store(first, w0, mask=groups * 4 < vocab_size)
    tl.store(first + 1, w1, mask=groups * 4 + 1 < vocab_size)
    tl.store(first + 2, w2, mask=groups * 4 + 2 < vocab_size)
    tl.store(first + 3, w3, mask=groups * 4 + 3 < vocab_size)
