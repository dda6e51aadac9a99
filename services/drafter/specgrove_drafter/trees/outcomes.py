"""What a verification may come to: an accepted path and one token of the target's own; and which outcomes are likely.

    root ─┬─ a 0.6 ── b 0.3      outcome (a, x): a accepted, then x, which is no child of a
          └─ c 0.2               outcome (a, b, y): the whole path accepted, then y, whatever it is

The chance of an outcome is the path's times the law's after it. Below a node with children only the other tokens are
outcomes (one of its children would have been accepted), so leaves give the likeliest ones. A good tree leaves no
outcome likely: each is what the tree did not cover. So many are drafted under at once; in a forward rows cost little.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from specgrove_drafter.trees.growth import Children
from specgrove_drafter.trees.proposal import Scale
from specgrove_drafter.trees.sent_draft import SentDraft

# Nodes whose law is computed at once in search of outcomes.
MAX_UNKNOWN = 8

Path = tuple[int, ...]  # token ids below the root of a base


@dataclass(frozen=True, slots=True)
class OutcomeLimits:
    """How many outcomes of a draft are worth a forward, and how likely they must be."""

    max_outcomes: int = 8
    min_prob: float = 0.02

    @property
    def min_log_prob(self) -> float:
        return math.log(self.min_prob) if self.min_prob > 0.0 else -math.inf


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The likeliest outcomes, best first; `unknown`: nodes whose law must be known before one can say."""

    paths: tuple[Path, ...]  # the accepted tokens and the target's own
    unknown: tuple[Path, ...] = ()


def likeliest_outcomes(
    sent: SentDraft, law_after: Callable[[Path], Children | None], scale: Scale, limits: OutcomeLimits
) -> Outcomes:
    """The outcomes of `sent` within `limits`.

    None are named while nodes likely enough to have a better one are `unknown`.
    """
    stops = sent.job.stop_token_ids
    found: list[tuple[float, Path]] = []
    unknown: list[tuple[float, Path]] = []
    for (node, score), children in zip(enumerate(sent.log_path_probs()), sent.tree.children(), strict=True):
        path = sent.tree.token_path(node)
        if score < limits.min_log_prob or not stops.isdisjoint(path):
            continue
        law = law_after(path)
        if law is None:
            unknown.append((score, path))
            continue
        taken = stops.union(sent.tree.token_ids[child] for child in children)
        for token_id, log_prob in zip(law.token_ids, law.log_probs, strict=True):
            chance = score + min(scale(len(path) + 1, log_prob), 0.0)
            if token_id not in taken and chance >= limits.min_log_prob:
                found.append((chance, (*path, token_id)))
    best = heapq.nlargest(limits.max_outcomes, found)
    bar = best[-1][0] if len(best) == limits.max_outcomes else -math.inf
    missing = heapq.nlargest(MAX_UNKNOWN, [entry for entry in unknown if entry[0] > bar])
    if missing:
        return Outcomes((), tuple(path for _, path in missing))
    return Outcomes(tuple(path for _, path in best))
