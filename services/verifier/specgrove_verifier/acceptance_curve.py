"""How many nodes of a tree come true, by how many it has: learned node by node.

    node      1     2     3     4     5   ...        in the order drafters send them: likeliest path first
    accepted  0.55  0.21  0.14  0.08  0.06           share of the trees that had this node and in which it was accepted
    first n   0.55  0.76  0.90  0.98  1.04           what n nodes are worth

A tree of n nodes is the first n of a larger one, and parents come before children, so one tree says of each of its
nodes what it was worth. Of nodes that no tree had lately, a typical curve says it, scaled by how the others compare
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
        self._trials = [0.0] * MAX_NODES
        self._sums: list[float] | None = None

    def observe(self, num_nodes: int, accepted_nodes: Sequence[int]) -> None:
        """A tree of `num_nodes` draft nodes, numbered from 1, had `accepted_nodes` accepted."""
        accepted = set(accepted_nodes)
        for place in range(min(num_nodes, MAX_NODES)):
            kept = min(1.0, _MEMORY_TREES / (self._trials[place] + 1.0))
            self._trials[place] = kept * (self._trials[place] + 1.0)
            self._hits[place] = kept * (self._hits[place] + (place + 1 in accepted))
        self._sums = None

    def expected(self, num_nodes: int) -> float:
        """Accepted tokens of a tree of `num_nodes` (more than `MAX_NODES` count as so many)."""
        if self._sums is None:
            expected_hits = sum(trials * typical for trials, typical in zip(self._trials, _TYPICAL, strict=True))
            scale = (sum(self._hits) + _PRIOR_TOKENS) / (expected_hits + _PRIOR_TOKENS)
            rates = [
                (hits + _PRIOR_TREES * scale * typical) / (trials + _PRIOR_TREES)
                for hits, trials, typical in zip(self._hits, self._trials, _TYPICAL, strict=True)
            ]
            self._sums = list(accumulate(rates, initial=0.0))
        return self._sums[min(num_nodes, MAX_NODES)]
