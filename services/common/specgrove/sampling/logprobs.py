"""What a client is told of the target's law: log-probabilities of the tokens that came, and of the likeliest ones.

They are those of the raw logits, as the model gave them: before bias, penalties, temperature and truncation (vLLM's
default, `raw_logprobs`). So they mean the same whatever was asked of the sampler, and a fresh prefill repeats them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specgrove.outcome import TokenLogprobs


def token_logprobs(
    logits: torch.Tensor,  # float32 [N, V], raw
    token_ids: Sequence[int],  # [N] the token that came after each row
    num_top: int,
) -> tuple[TokenLogprobs, ...]:  # [N]
    """The log-probabilities of `token_ids` and, likeliest first, of the `num_top` likeliest tokens of each row."""
    log_probs = logits.float().log_softmax(dim=-1)
    ids = torch.tensor(list(token_ids), device=logits.device)
    chosen: list[float] = log_probs.gather(1, ids[:, None])[:, 0].tolist()
    num_top = min(num_top, logits.shape[-1])
    if num_top == 0:
        return tuple(TokenLogprobs(logprob) for logprob in chosen)
    top = log_probs.topk(num_top, dim=-1)
    rows = zip(chosen, top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple(TokenLogprobs(logprob, tuple(zip(tops, values, strict=True))) for logprob, tops, values in rows)
