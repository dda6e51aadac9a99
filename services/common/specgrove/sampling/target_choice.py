"""Which token the target wants after each row: the one sampler of plain decoding and of every tree node.

    choice(row) = argmax over x of  scores(row)[x] + gumbel(seed, position(row), x)

where `scores` are the processed logits (temperature, top-k, top-p, min-p, in that order) and greedy is the same rule
without processing and noise. Bias and penalties come before all this (`adjustments`): they need the row's own path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specgrove.sampling.noise import NoiseRows
from specgrove.sampling.params import SamplingParams

_REMOVED = float("-inf")


def process_logits(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Log target_probs up to a constant per row: float32 [N, V] -> float32 [N, V], removed tokens at -inf.

    `params.temperature` must be above 0. Never removes the likeliest token of a row.
    """
    # Shifted first, so that a tiny temperature sends the others to -inf rather than the best one to infinity.
    scores = (logits - logits.amax(dim=-1, keepdim=True)) / params.temperature
    vocab_size = scores.shape[-1]
    if 0 < params.top_k < vocab_size:
        kth = scores.topk(params.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, _REMOVED)
    if params.top_p < 1.0:
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(dim=-1)
        # A token stays while the mass before it is below top_p: the first always stays.
        mass_before = probs.cumsum(dim=-1) - probs
        removed = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, mass_before >= params.top_p)
        removed.scatter_(-1, order[:, :1], False)
        scores = scores.masked_fill(removed, _REMOVED)
    if params.min_p > 0.0:
        probs = scores.softmax(dim=-1)
        scores = scores.masked_fill(probs < params.min_p * probs.amax(dim=-1, keepdim=True), _REMOVED)
    return scores


def target_probs(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The target's law after each row: float32 [N, V] -> float64 [N, V], each row with sum 1.

    The law that `choose_tokens` draws from; `params.temperature` must be above 0.
    """
    return process_logits(logits, params).to(torch.float64).softmax(dim=-1)


def suppress(
    logits: torch.Tensor,  # float32 [N, V]
    positions: Sequence[int],  # [N] absolute index of the token drawn after each row
    suppressed_ids: Sequence[int],
    suppressed_below: int,
) -> torch.Tensor:  # float32 [N, V]
    """Logits under which `suppressed_ids` cannot be drawn at positions below `suppressed_below` (`min_tokens`)."""
    if not suppressed_ids or min(positions) >= suppressed_below:
        return logits
    rows = torch.tensor([position < suppressed_below for position in positions], device=logits.device)
    ids = torch.tensor(list(suppressed_ids), device=logits.device)
    logits = logits.clone()
    logits[rows.nonzero(), ids] = _REMOVED
    return logits


def choose_tokens(
    logits: torch.Tensor,  # float32 [N, V]
    params: SamplingParams,
    positions: Sequence[int],  # [N] absolute index of the token drawn after each row
    noise: NoiseRows,
    *,
    suppressed_ids: Sequence[int] = (),
    suppressed_below: int = 0,
) -> list[int]:  # [N]
    """The target's token after each row. Rows are independent: the same row gives the same token in any company.

    `suppressed_ids` and `suppressed_below` as in `suppress`.
    """
    logits = suppress(logits, positions, suppressed_ids, suppressed_below)
    if params.is_greedy:
        return logits.argmax(dim=-1).tolist()
    return (process_logits(logits, params) + noise.rows(positions)).argmax(dim=-1).tolist()
