# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The target's token after each row in Triton: the same token as `token_choice`, without a noise tensor in memory.

logits [N, V]   | chunk 0 | chunk 1 | ...      1. largest logit of each chunk
                                               2. best score and its lowest id in each chunk, noise made on the fly
                                               3. best chunk of each row
"""

import torch
import triton
import triton.language as tl

from specgrove_kernels.philox_triton import gumbel, philox
from specgrove_kernels.token_choice import SHARED_STREAM

_GROUPS = 256  # four tokens each, made by one round of Philox
_CHUNK = 4 * _GROUPS


def choose_tokens(
    logits: torch.Tensor,  # float32 [N, V]
    temperatures: torch.Tensor,  # float32 [N]; 0 is greedy
    seeds: torch.Tensor,  # int64 [N], the 64 bits of the seed
    positions: torch.Tensor,  # int64 [N], absolute index of the token drawn after each row
    *,
    stream: int = SHARED_STREAM,
) -> torch.Tensor:  # int64 [N]
    """The token of each row; the lowest id where scores tie. Rows are independent of one another."""
    num_rows, vocab_size = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    num_chunks = triton.cdiv(vocab_size, _CHUNK)
    peaks = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=logits.device)
    scores = torch.empty_like(peaks)
    ids = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=logits.device)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    padded = triton.next_power_of_2(num_chunks)
    grid = (num_rows, num_chunks)
    _peak_of_chunk[grid](logits, peaks, logits.stride(0), vocab_size, num_chunks, CHUNK=_CHUNK)
    _best_of_chunk[grid](
        logits,
        peaks,
        scores,
        ids,
        temperatures,
        seeds,
        positions,
        int(stream),
        logits.stride(0),
        vocab_size,
        num_chunks,
        GROUPS=_GROUPS,
        CHUNKS=padded,
    )
    _best_of_row[(num_rows,)](scores, ids, tokens, num_chunks, CHUNKS=padded)
    return tokens


@triton.jit
def _peak_of_chunk(logits, peaks, stride_row, vocab_size, num_chunks, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * stride_row + tokens, mask=tokens < vocab_size, other=float("-inf"))
    tl.store(peaks + row * num_chunks + chunk, tl.max(values, axis=0))


@triton.jit
def _best_of_chunk(
    logits,
    peaks,
    scores_out,
    ids_out,
    temperatures,
    seeds,
    positions,
    stream,
    stride_row,
    vocab_size,
    num_chunks,
    GROUPS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    every = tl.arange(0, CHUNKS)
    peak = tl.max(tl.load(peaks + row * num_chunks + every, mask=every < num_chunks, other=float("-inf")), axis=0)
    temperature = tl.load(temperatures + row)
    is_drawn = temperature > 0
    divisor = tl.zeros([GROUPS], dtype=tl.float32) + tl.where(is_drawn, temperature, 1.0)
    groups = chunk * GROUPS + tl.arange(0, GROUPS)
    w0, w1, w2, w3 = philox(groups, tl.load(seeds + row), tl.load(positions + row), stream)
    values = logits + row * stride_row
    # Greedy takes the first largest logit; a score of nothing (-inf) never beats it, and some logit is finite.
    best = tl.full([GROUPS], float("-inf"), dtype=tl.float32)
    ids = groups * 4
    best, ids = _better(best, ids, values, groups * 4, w0, peak, divisor, is_drawn, vocab_size)
    best, ids = _better(best, ids, values, groups * 4 + 1, w1, peak, divisor, is_drawn, vocab_size)
    best, ids = _better(best, ids, values, groups * 4 + 2, w2, peak, divisor, is_drawn, vocab_size)
    best, ids = _better(best, ids, values, groups * 4 + 3, w3, peak, divisor, is_drawn, vocab_size)
    top = tl.max(best, axis=0)
    tl.store(scores_out + row * num_chunks + chunk, top)
    tl.store(ids_out + row * num_chunks + chunk, tl.min(tl.where(best == top, ids, 2147483647), axis=0))


@triton.jit
def _better(best, ids, values, tokens, words, peak, divisor, is_drawn, vocab_size):
    """The better of the best so far and `tokens`, lane by lane; the earlier one where they tie."""
    logits = tl.load(values + tokens, mask=tokens < vocab_size, other=float("-inf"))
    # Division as the reference rounds it: the quick one of GPUs may be an ulp off.
    drawn = tl.div_rn(logits - peak, divisor) + gumbel(words)
    scores = tl.where(is_drawn, drawn, logits)
    is_better = scores > best
    return tl.where(is_better, scores, best), tl.where(is_better, tokens, ids)


@triton.jit
def _best_of_row(scores, ids, tokens, num_chunks, CHUNKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS)
    is_chunk = chunks < num_chunks
    best = tl.load(scores + row * num_chunks + chunks, mask=is_chunk, other=float("-inf"))
    candidates = tl.load(ids + row * num_chunks + chunks, mask=is_chunk, other=2147483647)
    chosen = tl.min(tl.where(best == tl.max(best, axis=0), candidates, 2147483647), axis=0)
    tl.store(tokens + row, chosen.to(tl.int64))
