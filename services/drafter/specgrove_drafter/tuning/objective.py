"""What distillation minimises: KL(target || SSM) over the classes that the stored law can tell apart.

The target's law is known for its 16 likeliest tokens. In the SSM's vocabulary that makes, at each position,

    up to 16 listed tokens | "other": listed tokens outside the vocabulary + their share of the tail | the unlisted rest

and the loss is the KL divergence between the two laws on these classes: exact where something is known, silent about
how the rest is divided.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specgrove_drafter.tuning.shards import Document, Role

FLOOR = 1e-6  # float32 cannot tell 1 - sum of probabilities from 0 below this


@dataclass(frozen=True, slots=True)
class CoarseLaw:
    """The target's law in draft classes; rows sum to 1 over all three parts."""

    ids: Tensor  # int64 [N, 16], draft ids; unlisted entries point at `other`
    listed: Tensor  # float32 [N, 16], 0 where the token is outside the vocabulary
    other: Tensor  # float32 [N]
    rest: Tensor  # float32 [N]


def coarse_law(top_ids: Tensor, top_logprobs: Tensor, to_draft: Tensor, tail_outside: float) -> CoarseLaw:
    """From target ids int64 [N, 16] and log-probabilities [N, 16]; `tail_outside` is the tail's share outside."""
    other_id = int(to_draft.max()) if to_draft.numel() else 0
    ids = to_draft[top_ids]
    law = top_logprobs.float().exp()
    law = law / law.sum(-1, keepdim=True).clamp(min=1.0)  # float16 may have rounded the sum above 1
    outside = ids == other_id
    tail = (1.0 - law.sum(-1)).clamp(min=0.0)
    return CoarseLaw(
        ids=ids,
        listed=law.masked_fill(outside, 0.0),
        other=(law * outside).sum(-1) + tail_outside * tail,
        rest=(1.0 - tail_outside) * tail,
    )


def coarse_kl(logits: Tensor, law: CoarseLaw) -> Tensor:
    """KL divergence in nats, float32 [N]; logits are the SSM's, [N, V], the last class being "other"."""
    entropy = torch.xlogy(law.listed, law.listed).sum(-1)
    entropy = entropy + torch.xlogy(law.other, law.other) + torch.xlogy(law.rest, law.rest)
    divergence: Tensor = _CrossEntropy.apply(logits, law.ids, law.listed, law.other, law.rest)
    return entropy + divergence


class _CrossEntropy(torch.autograd.Function):
    """-sum of (target's class probability) * log(SSM's class probability), float32 [N].

    With p the SSM's law, T the listed tokens and "other", t their mass and r the target's rest, the gradient is
    p * (1 - r / (1 - t)) - (target's law on T) + r / (1 - t) * p on T: one pass over the vocabulary, where automatic
    differentiation makes four.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, listed: Tensor, other: Tensor, rest: Tensor) -> Tensor:
        log_norm = logits.float().logsumexp(-1)
        chosen = logits.gather(-1, ids).float() - log_norm[:, None]
        log_other = logits[:, -1].float() - log_norm
        taken = (chosen.exp() * (listed > 0)).sum(-1) + log_other.exp()
        left = (1.0 - taken).clamp(min=FLOOR)
        ctx.save_for_backward(logits, log_norm, ids, listed, other, rest, left)
        return -((listed * chosen).sum(-1) + other * log_other + rest * left.log())

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, log_norm, ids, listed, other, rest, left = ctx.saved_tensors
        law = (logits.float() - log_norm[:, None]).exp_()
        share = rest / left
        on_listed = share[:, None] * law.gather(-1, ids) * (listed > 0) - listed
        on_other = share * law[:, -1] - other
        gradient = law.mul_((1.0 - share)[:, None].to(law.dtype))
        gradient.scatter_add_(-1, ids, on_listed)
        gradient[:, -1] += on_other
        return (gradient.mul_(upstream[:, None]).to(logits.dtype), None, None, None, None)


def tail_share_outside(documents: Iterable[Document], to_draft: Tensor) -> float:
    """The share outside the vocabulary of the target's mass on ranks 9 to 16: the best guess for the unseen tail."""
    other_id = int(to_draft.max())
    outside = total = 0.0
    for document in documents:
        heard = document.roles >= Role.USER
        law = document.top_logprobs[heard][:, 8:].float().exp()
        outside += float((law * (to_draft[document.top_ids[heard][:, 8:].long()] == other_id)).sum())
        total += float(law.sum())
    return outside / total if total else 0.0
