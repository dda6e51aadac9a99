"""Growing trees whose children are drawn from the member's law instead of ranked by it (rule `mss`; `naive` on demand).

    round 0: root, 3 draws           round 1: 2 draws for a, 1 for c (by the paths above them)
    root ─┬─ b  (1st draw)           a ─┬─ e
          ├─ a  (2nd)                   └─ d       c ── f       b: none
          └─ c  (3rd)

Each expanded node leaves its law and its draws, in the order drawn, in the proposal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specgrove.draft_laws import MAX_LAW_LEN
from specgrove_drafter.jobs import Budget, DraftJob
from specgrove_drafter.trees.child_sampler import ChildSampler, law_of
from specgrove_drafter.trees.draw_plans import DRAW_GAINS, BestFirstPlan, DrawPlan, WidthPlan
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, Children, ExpansionPolicy, GrowthPolicy
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal, ProposedLaw

# P(a draw is accepted) rises with its probability in the law: about this line, for the first draw of a node.
_LEAST_ACCEPTANCE, _ACCEPTANCE_SLOPE = 0.15, 0.75


@dataclass(frozen=True, slots=True)
class SampledPolicy:
    """The drawn counterpart of a policy: its static shape, or as many rounds as its best-first trees are worth."""

    shape: GrowthPolicy
    sampler: ChildSampler

    @property
    def num_children(self) -> int:
        return MAX_LAW_LEN  # the whole law

    def start(self, job: DraftJob, budget: Budget, rivals: Proposal) -> SampledGrowth:
        """`rivals` are not looked at: they have their own share of the budget."""
        return SampledGrowth(job, budget, self._plan(budget), self.sampler)

    def _plan(self, budget: Budget) -> DrawPlan:
        match self.shape:
            case ExpansionPolicy(config):
                return WidthPlan(config.widths)
            case BestFirstPolicy(settings):
                return BestFirstPlan.for_budget(budget.max_nodes, budget.max_depth, settings.min_path_prob)
            case _:
                return BestFirstPlan.for_budget(budget.max_nodes, budget.max_depth, BestFirst().min_path_prob)


class SampledGrowth:
    """One tree in the making; see `Growth`."""

    def __init__(self, job: DraftJob, budget: Budget, plan: DrawPlan, sampler: ChildSampler) -> None:
        self.proposal = Proposal()
        self._stop_token_ids = job.stop_token_ids
        self._max_depth = budget.max_depth
        self._plan = plan
        self._sampler = sampler
        self._num_left = budget.max_nodes
        self._open: dict[int, float] = {}
        self._round = 0
        self._allotted = plan.allot(0, {BELOW_ROOT: 1.0}, self._num_left) if budget.max_depth else {}
        self._num_left -= sum(self._allotted.values())

    def next_nodes(self) -> list[int]:
        self._round += 1
        self._allotted = self._plan.allot(self._round, self._open, self._num_left)
        self._num_left -= sum(self._allotted.values())
        for node in self._allotted:
            del self._open[node]
        return sorted(self._allotted)

    def add_children(self, node: int, children: Children) -> None:
        token_ids, probs = law_of(children)
        places = self._sampler.draw(probs, self._allotted.get(node, 0)) if probs else []
        if not places:
            return
        draws = []
        not_taken = 1.0
        for number, place in enumerate(places):
            prob = not_taken * _acceptance(probs[place], number)
            not_taken -= prob
            draws.append(self._add(node, token_ids[place], prob, children.shares_of(place)))
        self.proposal.laws.append(ProposedLaw(node, token_ids, probs, tuple(draws)))

    def _add(self, parent: int, token_id: int, prob: float, shares: tuple[float, ...]) -> int:
        node = self.proposal.add(parent, token_id, math.log(prob), shares)
        # A generation ends at its stop token: nothing below it can ever be accepted.
        if self.proposal.depths[node] < self._max_depth and token_id not in self._stop_token_ids:
            self._open[node] = math.exp(self.proposal.log_path_probs[node])
        return node


def _acceptance(draft_prob: float, number: int) -> float:
    """The chance of the `number`-th draw below a node, given that those before it were rejected."""
    first = _LEAST_ACCEPTANCE + _ACCEPTANCE_SLOPE * draft_prob
    return first * DRAW_GAINS[min(number, len(DRAW_GAINS) - 1)] / DRAW_GAINS[0]
