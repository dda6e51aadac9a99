"""How one member's tree for one session grows: which nodes are expanded next, and when it is enough.

A *round* is one packed forward over all sessions; each growth names the nodes it wants expanded in that round. Levels
cost forwards (milliseconds each), nodes within a level are nearly free, so the best-first growth is level-synchronous:

    round 0: root             round 1: the best `frontier_width` nodes        round 2: the best unexpanded ones, ...
    root ─┬─ a 0.6            a ─┬─ d 0.4      b ── f 0.1                      whatever their depth
          ├─ b 0.2               └─ e 0.1
          └─ c 0.1

A node that is not among the best `max_nodes` seen so far is never expanded: estimates only fall downwards, so neither
it nor anything below it can enter the final tree. What cheaper members propose for the same base (the *rivals*) counts
among those seen: where prompt lookup is sure of a long copy, an SSM runs few forwards or none. Differs from EAGLE-2
(arXiv 2406.16858): nodes passed over on an earlier level stay candidates.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Protocol

from specgrove.tree import ExpansionConfig
from specgrove_drafter.jobs import Budget, DraftJob
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal


@dataclass(frozen=True, slots=True)
class Children:
    """Candidates below one node, likeliest first; `log_probs` estimate P(the target takes it | it is at the node).

    Where several models speak as one, `shares[i]` is what each of them alone gives candidate i.
    """

    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    shares: tuple[tuple[float, ...], ...] = ()  # probabilities [candidates][models]; empty for a single model

    def shares_of(self, place: int) -> tuple[float, ...]:
        """The shares of one candidate; empty for a single model."""
        return self.shares[place] if self.shares else ()


@dataclass(frozen=True, slots=True)
class BestFirst:
    """Settings of the dynamic shape. A round is run only while its best node's estimate is at least `min_path_prob`."""

    frontier_width: int = 4
    num_children: int = 8
    min_path_prob: float = 0.2

    def __post_init__(self) -> None:
        if self.frontier_width < 1 or self.num_children < 1:
            raise ValueError("frontier_width and num_children must be at least 1")
        if not 0.0 <= self.min_path_prob < 1.0:
            raise ValueError(f"min_path_prob must be in [0, 1), got {self.min_path_prob}")


class Growth(Protocol):
    """One tree in the making. Call `add_children(BELOW_ROOT, ...)` first, then expand what `next_nodes` names."""

    proposal: Proposal

    def next_nodes(self) -> list[int]:
        """Entries of `proposal` to expand in the next round, parents expanded before; empty = finished."""
        ...

    def add_children(self, node: int, children: Children) -> None: ...


class GrowthPolicy(Protocol):
    """The shape of trees: makes one growth for each draft."""

    @property
    def num_children(self) -> int:
        """How many candidates a node needs at most."""
        ...

    def start(self, job: DraftJob, budget: Budget, rivals: Proposal) -> Growth: ...


class RivalPaths:
    """What others propose, by path, so that a path proposed twice takes one place."""

    def __init__(self, proposal: Proposal) -> None:
        self._scores = proposal.log_path_probs
        self._unmet = set(range(len(proposal)))
        self._entry_of = {
            (parent, token_id): entry
            for entry, (parent, token_id) in enumerate(zip(proposal.parents, proposal.token_ids, strict=True))
        }
        self._met: dict[int, int] = {BELOW_ROOT: BELOW_ROOT}  # our node -> the rival's entry with the same path

    def meet(self, parent: int, token_id: int, node: int) -> None:
        """Note that our `node` stands for `token_id` under our `parent`."""
        if parent in self._met:
            entry = self._entry_of.get((self._met[parent], token_id))
            if entry is not None:
                self._met[node] = entry
                self._unmet.discard(entry)

    def unmet_scores(self) -> list[float]:
        """Estimates of the rivals' nodes that we do not propose ourselves."""
        return [self._scores[entry] for entry in self._unmet]


class _GrowingTree:
    """What both shapes share: the nodes so far and which of them may still be expanded."""

    def __init__(self, job: DraftJob, budget: Budget, rivals: Proposal) -> None:
        self.proposal = Proposal()
        self._stop_token_ids = job.stop_token_ids
        self._budget = budget
        self._open: list[int] = []  # may be expanded, not expanded yet
        self._rivals = RivalPaths(rivals)

    def _add(self, parent: int, children: Children, width: int) -> None:
        depth = self.proposal.depth_below(parent)
        if depth > self._budget.max_depth:
            return
        for place, (token_id, log_prob) in enumerate(
            zip(children.token_ids[:width], children.log_probs[:width], strict=True)
        ):
            node = self.proposal.add(parent, token_id, log_prob, children.shares_of(place))
            self._rivals.meet(parent, token_id, node)
            # A generation ends at its stop token: nothing below it can ever be accepted.
            if depth < self._budget.max_depth and token_id not in self._stop_token_ids:
                self._open.append(node)

    def _prune(self) -> None:
        """Close the nodes that cannot be part of the final tree."""
        scores = self.proposal.log_path_probs
        seen = [*scores, *self._rivals.unmet_scores()]
        if len(seen) > self._budget.max_nodes:
            bar = heapq.nlargest(self._budget.max_nodes, seen)[-1] if self._budget.max_nodes else math.inf
            self._open = [node for node in self._open if scores[node] >= bar]


class BestFirstGrowth(_GrowingTree):
    """Expands the likeliest unexpanded nodes; at most `max_depth` rounds, the root's included."""

    def __init__(self, job: DraftJob, budget: Budget, rivals: Proposal, settings: BestFirst) -> None:
        super().__init__(job, budget, rivals)
        self._settings = settings
        self._rounds_left = budget.max_depth - 1
        self._min_log_prob = math.log(settings.min_path_prob) if settings.min_path_prob > 0 else -math.inf

    def next_nodes(self) -> list[int]:
        self._prune()
        if self._rounds_left < 1 or not self._open:
            return []
        self._rounds_left -= 1
        scores = self.proposal.log_path_probs
        best = heapq.nsmallest(self._settings.frontier_width, self._open, key=lambda node: (-scores[node], node))
        if scores[best[0]] < self._min_log_prob:
            return []
        self._open = [node for node in self._open if node not in best]
        return best

    def add_children(self, node: int, children: Children) -> None:
        self._add(node, children, self._settings.num_children)


class ExpansionGrowth(_GrowingTree):
    """Follows an expansion config <k1,...,km>: every node at depth i gets its k_(i+1) likeliest children."""

    def __init__(self, job: DraftJob, budget: Budget, rivals: Proposal, widths: tuple[int, ...]) -> None:
        super().__init__(job, budget.capped(budget.max_nodes, len(widths)), rivals)
        self._widths = widths

    def next_nodes(self) -> list[int]:
        self._prune()
        nodes, self._open = self._open, []
        return nodes

    def add_children(self, node: int, children: Children) -> None:
        level = self.proposal.depth_below(node) - 1
        if level < len(self._widths):
            self._add(node, children, self._widths[level])


@dataclass(frozen=True, slots=True)
class BestFirstPolicy:
    settings: BestFirst

    @property
    def num_children(self) -> int:
        return self.settings.num_children

    def start(self, job: DraftJob, budget: Budget, rivals: Proposal) -> BestFirstGrowth:
        return BestFirstGrowth(job, budget, rivals, self.settings)


@dataclass(frozen=True, slots=True)
class ExpansionPolicy:
    config: ExpansionConfig

    @property
    def num_children(self) -> int:
        return max(self.config.widths)

    def start(self, job: DraftJob, budget: Budget, rivals: Proposal) -> ExpansionGrowth:
        return ExpansionGrowth(job, budget, rivals, self.config.widths)


def policy_of(expansion: str, best_first: BestFirst) -> GrowthPolicy:
    """The static shape `expansion` names (`1,1,3,1`), or best-first when it is empty."""
    return ExpansionPolicy(ExpansionConfig.parse(expansion)) if expansion else BestFirstPolicy(best_first)
