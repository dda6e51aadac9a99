"""From SSM logits to ranked children: which tokens to propose below a node, and how likely each is to be taken.

The target takes `argmax_x log target_probs(x) + g(seed, position, x)`, where target_probs is its law at temperature T.
Multiplied by T (which moves no argmax) this is

    argmax_x  log p(x) + T * g(x)          p: the target's law at temperature 1; T = 0 is greedy

and the drafter knows everything in it but log p, for which it has log q. If the error of log q were Gumbel noise of
scale e, the chance that x is taken would be exactly softmax((log q + T * g) / e)(x). So greedy and sampling are one
formula: it ranks by the law or by the shared noise, and it serves as estimate. Truncation (top-k, top-p, min-p) is
the target's business, but what it would cut from the draft's own law is not proposed. A client's `logit_bias` moves
log q as it moves log p.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from specgrove.sampling.noise import gumbel_at
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove_drafter.members.child_law import sparse_laws
from specgrove_drafter.trees.growth import Children

# A sampled token comes from the draft's likeliest this many in all but a few per cent of the cases, and noise is made
# for these only.
SHORTLIST_LEN = 256
# The scale of the error of log q (see above), where calibration starts (`trees/calibration.py`). With 1.4 the first
# shipped SSM's estimates about 0.2 came true as often as they say, lower ones more often and higher ones less often
# (README); with 1.0 all are too sure of themselves, which costs forwards, not tokens.
ERROR_SCALE = 1.4


@dataclass(frozen=True, slots=True)
class LawRow:
    """How the token after one row will be drawn: `position` is its absolute index in the sequence."""

    sampling: SamplingParams
    position: int
    rule: Rule = Rule.COUPLED
    log_weights: tuple[float, ...] = (0.0,)  # [K]: how much each of K models that speak as one is believed


def rank_children(
    logits: torch.Tensor,  # float32 [N, K, V_draft], or [N, V_draft] for one model
    rows: Sequence[LawRow],  # [N]
    num_children: int,
    *,
    to_target: torch.Tensor | None = None,  # int64 [V_draft]: target id of each draft id
    other_id: int | None = None,  # the draft id that stands for all other target tokens: never proposed
) -> list[Children]:
    """The likeliest children after each row, best first; under rules without shared noise those of the law itself.

    Several models speak through the mean of their laws, by the row's weights.
    """
    by_model = _biased(logits if logits.dim() == 3 else logits[:, None], rows, to_target)
    own_log_probs = (by_model / ERROR_SCALE).log_softmax(dim=-1)
    log_probs = _mean_law(own_log_probs, rows)
    if other_id is not None:
        # Its mass stays in the normaliser: it is the chance that nothing we can name is right.
        log_probs[:, other_id] = float("-inf")
    sampled = [i for i, row in enumerate(rows) if not row.sampling.is_greedy and row.rule is Rule.COUPLED]
    own_law = [i for i, row in enumerate(rows) if not row.sampling.is_greedy and row.rule is not Rule.COUPLED]
    num_proposable = log_probs.shape[-1] - (other_id is not None)
    width = min(max(num_children, SHORTLIST_LEN) if sampled else num_children, num_proposable)
    top, ids = log_probs.topk(width, dim=-1)
    best = _to_children(ids[:, :num_children], top[:, :num_children])
    # Noise and laws cost by the call rather than by the number of rows.
    for params, members in _by_sampling(rows, sampled).items():
        positions = torch.tensor([[rows[index].position] for index in members], device=ids.device)
        noise = gumbel_at(params.seed, positions, _target_ids(ids[members], to_target))
        ranked = _rank_sampled(top[members], ids[members], noise, params, num_children)
        for index, children in zip(members, ranked, strict=True):
            best[index] = children
    for params, members in _by_sampling(rows, own_law).items():
        law_ids, laws = sparse_laws(_own_law(by_model[members], [rows[i] for i in members], other_id), params)
        ranked = _to_children(law_ids[:, :num_children], laws[:, :num_children])
        for index, children in zip(members, ranked, strict=True):
            best[index] = children
    return _named(best, to_target, own_log_probs)


def _biased(by_model: torch.Tensor, rows: Sequence[LawRow], to_target: torch.Tensor | None) -> torch.Tensor:
    """Logits with each row's `logit_bias`: float32 [N, K, V_draft]. Penalties, which need the row's path, are left to
    the target."""
    biased = [index for index, row in enumerate(rows) if row.sampling.logit_bias]
    if not biased:
        return by_model
    by_model = by_model.clone()
    num_draft = by_model.shape[-1]
    num_target = num_draft if to_target is None else int(to_target.max()) + 1
    for params, members in _by_sampling(rows, biased).items():
        by_id = torch.zeros(num_target, device=by_model.device)
        for token_id, bias in params.logit_bias:
            if token_id < num_target:
                by_id[token_id] = bias
        by_model[members] += by_id if to_target is None else by_id[to_target[:num_draft]]
    return by_model


def _own_law(logits: torch.Tensor, rows: Sequence[LawRow], other_id: int | None) -> torch.Tensor:
    """float32 [N, V] from [N, K, V]: log probabilities at temperature 1, nothing but the models' own (mean) law."""
    law = _mean_law(logits.log_softmax(dim=-1), rows)
    if other_id is not None:
        law[:, other_id] = float("-inf")
    return law


def _target_ids(ids: torch.Tensor, to_target: torch.Tensor | None) -> torch.Tensor:
    return ids if to_target is None else to_target[ids]


def _mean_law(own_log_probs: torch.Tensor, rows: Sequence[LawRow]) -> torch.Tensor:
    """float32 [N, V] from [N, K, V]."""
    if own_log_probs.shape[1] == 1:
        return own_log_probs[:, 0]
    weights = torch.tensor([row.log_weights for row in rows], device=own_log_probs.device)
    return (own_log_probs + weights[:, :, None]).logsumexp(dim=1)


def _by_sampling(rows: Sequence[LawRow], members: Sequence[int]) -> dict[SamplingParams, list[int]]:
    """`members` (numbers of rows) by their sampling parameters, which the rows of one session share."""
    groups: dict[SamplingParams, list[int]] = {}
    for index in members:
        groups.setdefault(rows[index].sampling, []).append(index)
    return groups


def _rank_sampled(
    log_probs: torch.Tensor,  # float32 [G, M], descending in each row
    ids: torch.Tensor,  # int64 [G, M]
    noise: torch.Tensor,  # float32 [G, M]
    params: SamplingParams,
    num_children: int,
) -> list[Children]:
    """Rank shortlists by their scores under the shared noise."""
    scores = log_probs + (params.temperature / ERROR_SCALE) * noise
    scores = scores.masked_fill(~_survivors(log_probs, params), float("-inf"))
    # What the shortlist leaves out competes with its mass and no noise of its own.
    rest = (1.0 - log_probs.exp().sum(dim=-1)).clamp_min(1e-9).log()
    normaliser = torch.logaddexp(scores.logsumexp(dim=-1), rest)
    best, order = scores.topk(min(num_children, scores.shape[-1]), dim=-1)
    return _to_children(ids.gather(-1, order), best - normaliser[:, None])


def _survivors(log_probs: torch.Tensor, params: SamplingParams) -> torch.Tensor:  # bool [G, M]
    """Which entries of descending shortlists top-k, top-p and min-p keep; always the first."""
    kept = torch.ones_like(log_probs, dtype=torch.bool)
    if params.top_k:
        kept[:, params.top_k :] = False
    if params.top_p < 1.0 or params.min_p > 0.0:
        probs = (log_probs * (ERROR_SCALE / params.temperature)).masked_fill(~kept, float("-inf")).softmax(dim=-1)
        kept &= (probs.cumsum(dim=-1) - probs) < params.top_p
        kept &= probs >= params.min_p * probs[:, :1]
    kept[:, 0] = True
    return kept


def _named(ranked: Sequence[Children], to_target: torch.Tensor | None, own_log_probs: torch.Tensor) -> list[Children]:
    """`ranked` by draft ids as children by target ids, with what each of several models gives them."""
    ids = torch.tensor([token_id for children in ranked for token_id in children.token_ids], dtype=torch.int64)
    ids = ids.to(own_log_probs.device)
    target_ids = iter(_target_ids(ids, to_target).tolist())
    shares: Iterator[tuple[float, ...]] = iter(())  # [candidates][K]
    if own_log_probs.shape[1] > 1:
        rows = [row for row, children in enumerate(ranked) for _ in children.token_ids]
        shares = map(tuple, own_log_probs[rows, :, ids].exp().tolist())
    counts = [len(children.token_ids) for children in ranked]
    return [
        Children(tuple(islice(target_ids, count)), children.log_probs, tuple(islice(shares, count)))
        for children, count in zip(ranked, counts, strict=True)
    ]


def _to_children(ids: torch.Tensor, log_probs: torch.Tensor) -> list[Children]:
    """One `Children` for each row of int64 [N, K] and float32 [N, K]; removed tokens (-inf) are left out."""
    children = []
    for row_ids, row_log_probs in zip(ids.tolist(), log_probs.tolist(), strict=True):
        pairs = [(t, p) for t, p in zip(row_ids, row_log_probs, strict=True) if p > -math.inf]
        children.append(Children(tuple(t for t, _ in pairs), tuple(p for _, p in pairs)))
    return children
