"""How many nodes of a tree come, and how many come true, by how many were granted: learned node by node.

    node      1     2     3     4     5   ...        in the order drafters send them: likeliest path first
    came      0.98  0.95  0.90  0.85  0.80           share of the answers to a grant of so many that had this node
    accepted  0.55  0.21  0.14  0.08  0.06           share of them in which it was accepted
    first n   0.55  0.76  0.90  0.98  1.04           what a grant of n nodes is worth

A grant of n nodes brings the first n of what a larger one brings, and parents come before children, so one tree says
of each of its nodes what it was worth. A drafter that answers with fewer nodes, or with none, has had its say on all
that it was granted. Of nodes that were not granted lately, a typical curve says it, scaled by how the others compare
with it. Under rule `mss` nodes come in the order drawn rather than by likelihood, so there it is an approximation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

MAX_NODES = 64
# The first node is accepted in 45% of the steps, each further one adds 72% of the one before (the first shipped SSM).
_FIRST_NODE, _DECAY = 0.45, 0.72
_PRIOR_TREES = 6.0  # evidence that the typical curve counts as, at each node
_PRIOR_TOKENS = 3.0  # and for its scale, in accepted tokens
_MEMORY_TREES = 256.0  # with more evidence at a node, older counts less
_TYPICAL = tuple(_FIRST_NODE * _DECAY**node for node in range(MAX_NODES))


class AcceptanceCurve:
    """Over all sessions of a verifier."""

    def __init__(self) -> None:
        self._hits = [0.0] * MAX_NODES
        self._present = [0.0] * MAX_NODES
        self._trials = [0.0] * MAX_NODES
        self._accepted: list[float] | None = None  # by number of granted nodes, from 0
        self._nodes: list[float] = []  # the same

    def observe(self, granted_nodes: int, num_nodes: int, accepted_nodes: Sequence[int]) -> None:
        """A grant of `granted_nodes` was answered with `num_nodes` draft nodes, numbered from 1, of which
        `accepted_nodes` were accepted."""
        accepted = set(accepted_nodes)
        for place in range(min(max(granted_nodes, num_nodes), MAX_NODES)):
            kept = min(1.0, _MEMORY_TREES / (self._trials[place] + 1.0))
            self._trials[place] = kept * (self._trials[place] + 1.0)
            self._present[place] = kept * (self._present[place] + (place < num_nodes))
            self._hits[place] = kept * (self._hits[place] + (place + 1 in accepted))
        self._accepted = None

    def expected(self, granted_nodes: int) -> float:
        """Accepted tokens under a grant of so many nodes (more than `MAX_NODES` count as so many)."""
        return self._sums()[min(granted_nodes, MAX_NODES)]

    def expected_nodes(self, granted_nodes: int) -> float:
        """Nodes that come under a grant of so many."""
        self._sums()
        return self._nodes[min(granted_nodes, MAX_NODES)]

    def _sums(self) -> list[float]:
        if self._accepted is None:
            expected_hits = sum(trials * typical for trials, typical in zip(self._trials, _TYPICAL, strict=True))
            scale = (sum(self._hits) + _PRIOR_TOKENS) / (expected_hits + _PRIOR_TOKENS)
            rates = [
                (hits + _PRIOR_TREES * scale * typical) / (trials + _PRIOR_TREES)
                for hits, trials, typical in zip(self._hits, self._trials, _TYPICAL, strict=True)
            ]
            shares = [
                (present + _PRIOR_TREES) / (trials + _PRIOR_TREES)
                for present, trials in zip(self._present, self._trials, strict=True)
            ]
            self._accepted = list(accumulate(rates, initial=0.0))
            self._nodes = list(accumulate(shares, initial=0.0))
        return self._accepted
