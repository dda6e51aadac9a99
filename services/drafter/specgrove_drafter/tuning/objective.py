"""What distillation minimises: KL(target || SSM), or || pool, over the classes that the stored law can tell apart.

The target's law is known for its 16 likeliest tokens. In the SSM's vocabulary that makes, at each position,

    up to 16 listed tokens | "other": listed tokens outside the vocabulary + their share of the tail | the unlisted rest

and the loss is the KL divergence between the two laws on these classes: exact where something is known, silent about
how the rest is divided.

In a pool whose mean law is to be right, the mean of the laws takes the place of the SSM's. Of SSMs that are trained no
longer it takes only their masses of these classes, so no row of theirs over the vocabulary is kept.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True, slots=True)
class ClassMasses:
    """What SSMs that are trained no longer give to the classes of a law: sums over `num_laws` of them."""

    listed: Tensor  # float32 [N, 16]
    other: Tensor  # float32 [N]
    rest: Tensor  # float32 [N]
    num_laws: int

    def __add__(self, more: ClassMasses) -> ClassMasses:
        return ClassMasses(
            self.listed + more.listed, self.other + more.other, self.rest + more.rest, self.num_laws + more.num_laws
        )


@torch.no_grad()
def class_masses(logits: Tensor, law: CoarseLaw) -> ClassMasses:
    """Of one SSM's logits [N, V]: all that the mean of its law and others' needs to keep of them."""
    classes = _classes(logits, law.ids, law.listed)
    return ClassMasses(classes.listed.exp(), classes.other.exp(), classes.rest.exp(), 1)


def coarse_kl(logits: Tensor, law: CoarseLaw, earlier: ClassMasses | None = None) -> Tensor:
    """KL divergence in nats, float32 [N], of the SSM's law from the target's, or of the mean of its and `earlier` laws.

    Logits are the SSM's, [N, V], the last class being "other"; the gradient is in them alone.
    """
    entropy = torch.xlogy(law.listed, law.listed).sum(-1)
    entropy = entropy + torch.xlogy(law.other, law.other) + torch.xlogy(law.rest, law.rest)
    if earlier is None:
        nothing = torch.zeros_like(law.other)
        earlier = ClassMasses(torch.zeros_like(law.listed), nothing, nothing, 0)
    masses = earlier.listed, earlier.other, earlier.rest
    of_sum: Tensor = _CrossEntropy.apply(logits, law.ids, law.listed, law.other, law.rest, *masses)
    return entropy + of_sum + math.log(earlier.num_laws + 1)


@dataclass(frozen=True, slots=True)
class _Classes:
    """Log-probabilities of the classes, in float32 or better."""

    log_norm: Tensor  # [N], of the logits
    listed: Tensor  # [N, 16]
    other: Tensor  # [N]
    rest: Tensor  # [N], not below the log of FLOOR


def _classes(logits: Tensor, ids: Tensor, listed: Tensor) -> _Classes:
    precise = _precise(logits)
    log_norm = precise.logsumexp(-1)
    chosen = precise.gather(-1, ids) - log_norm[:, None]
    other = precise[:, -1] - log_norm
    taken = (chosen.exp() * (listed > 0)).sum(-1) + other.exp()
    return _Classes(log_norm, chosen, other, (1.0 - taken).clamp(min=FLOOR).log())


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _CrossEntropy(torch.autograd.Function):
    """-sum over classes c of t_c * log(F_c + P_c), [N]: t the target's masses, P the SSM's, F what earlier SSMs give.

    With p the SSM's law and w_c = P_c / (F_c + P_c) its share in a class, 1 where there are no earlier SSMs, the
    gradient at token k of class c is p_k * sum(t * w) - t_c * w_c * p_k / P_c. For all tokens of the rest the last
    factor is the same, t_rest / (F_rest + P_rest), so it takes one pass over the vocabulary, where automatic
    differentiation makes four; for the tokens that are a class of their own p_k = P_c.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        ids: Tensor,
        listed: Tensor,
        other: Tensor,
        rest: Tensor,
        earlier_listed: Tensor,
        earlier_other: Tensor,
        earlier_rest: Tensor,
    ) -> Tensor:
        own = _classes(logits, ids, listed)
        log_listed = torch.logaddexp(earlier_listed.log(), own.listed)
        log_other = torch.logaddexp(earlier_other.log(), own.other)
        log_rest = torch.logaddexp(earlier_rest.log(), own.rest)
        on_listed = listed * (own.listed - log_listed).exp()
        on_other = other * (own.other - log_other).exp()
        of_rest = rest * (-log_rest).exp()
        total = on_listed.sum(-1) + on_other + of_rest * own.rest.exp()
        ctx.save_for_backward(logits, own.log_norm, ids, listed > 0, on_listed, on_other, of_rest, total)
        return -((listed * log_listed).sum(-1) + other * log_other + rest * log_rest)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, log_norm, ids, is_listed, on_listed, on_other, of_rest, total = ctx.saved_tensors
        law = (_precise(logits) - log_norm[:, None]).exp_()
        at_ids = of_rest[:, None] * law.gather(-1, ids) * is_listed - on_listed
        at_other = of_rest * law[:, -1] - on_other
        gradient = law.mul_((total - of_rest)[:, None])
        gradient.scatter_add_(-1, ids, at_ids)
        gradient[:, -1] += at_other
        return (gradient.mul_(upstream[:, None]).to(logits.dtype), *[None] * 7)


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
