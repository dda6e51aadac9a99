"""The law an SSM draws children from under rules `mss` and `naive`: no shared noise, the session's own truncation."""

from __future__ import annotations

import torch

from specgrove.draft_laws import MAX_LAW_LEN
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.target_choice import process_logits


def sparse_laws(
    logits: torch.Tensor,  # float32 [N, V_draft], up to a constant a row; -inf = never proposed
    params: SamplingParams,  # temperature above 0
) -> tuple[torch.Tensor, torch.Tensor]:  # int64 [N, K] draft ids, float32 [N, K] log probabilities, descending
    """The law of each row after temperature and truncation, cut to its likeliest K <= 64 tokens and renormalised.

    Any law is exact under `mss` as long as it is the one that is drawn from and sent. Truncation is taken within the
    cut, which spares a sort of the whole vocabulary. Removed tokens have -inf.
    """
    top, ids = logits.topk(min(MAX_LAW_LEN, logits.shape[-1]), dim=-1)
    return ids, process_logits(top, params).log_softmax(dim=-1)
