"""How many children are drawn below which node: decided before anything there is drawn.

A law's draws are exact under rule `mss` only if their number depends on nothing they turned out to be
(specgrove.draft_laws). So a plan fixes the rounds and the draws of each round from the budget alone, a node gets its
draws once, and none is taken back. Which nodes get them may depend on what was drawn above: that is the prefix they
stand under. With the number of rounds the time of a draft is fixed too, or a draft that comes too late would be a
selection by value by other means.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Protocol

# How often the first, second, ... draw below a node is accepted, about: the shape of the plan follows it. Measured at
# temperature 1 with the shipped SSM: 0.28 for one draw, 0.48 for five; a feature-fed SSM does better on the first.
DRAW_GAINS = (0.36, 0.1, 0.06, 0.04, 0.03, 0.025, 0.02, 0.015)


class DrawPlan(Protocol):
    """The draws of one tree, round by round; round 0 is the root's."""

    def allot(self, round_number: int, open_nodes: Mapping[int, float], num_left: int) -> dict[int, int]:
        """The draws of the nodes that get some, `num_left` at most in all; `open_nodes`: node -> path probability."""
        ...


class WidthPlan:
    """An expansion config <k1,...,km>: every node at depth i has k_(i+1) draws, the likeliest paths first."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        self._widths = widths

    def allot(self, round_number: int, open_nodes: Mapping[int, float], num_left: int) -> dict[int, int]:
        if round_number >= len(self._widths):
            return {}
        draws: dict[int, int] = {}
        for node in sorted(open_nodes, key=lambda node: (-open_nodes[node], node)):
            width = min(self._widths[round_number], num_left)
            if width:
                draws[node] = width
                num_left -= width
        return draws


class BestFirstPlan:
    """The draws of each round as a tree of typical acceptance would have them, given to the likeliest paths."""

    def __init__(self, totals: tuple[int, ...]) -> None:
        self.totals = totals

    @classmethod
    def for_budget(cls, max_draws: int, max_depth: int, min_path_prob: float) -> BestFirstPlan:
        """The most accepted draws for `max_draws`; no round is planned for a path less likely than `min_path_prob`."""
        totals = [0] * max_depth
        # (minus path probability, depth, path probability above, number among its siblings)
        candidates = [(-DRAW_GAINS[0], 0, 1.0, 0)] if max_depth > 0 else []
        for _ in range(max_draws):
            if not candidates:
                break
            gain, depth, above, number = heapq.heappop(candidates)
            totals[depth] += 1
            if number + 1 < len(DRAW_GAINS):
                heapq.heappush(candidates, (-above * DRAW_GAINS[number + 1], depth, above, number + 1))
            if depth + 1 < max_depth and -gain >= min_path_prob:
                heapq.heappush(candidates, (gain * DRAW_GAINS[0], depth + 1, -gain, 0))
        return cls(tuple(total for total in totals if total))

    def allot(self, round_number: int, open_nodes: Mapping[int, float], num_left: int) -> dict[int, int]:
        if round_number >= len(self.totals):
            return {}
        draws: dict[int, int] = {}
        candidates = [(-prob * DRAW_GAINS[0], node) for node, prob in open_nodes.items()]
        heapq.heapify(candidates)
        for _ in range(min(self.totals[round_number], num_left)):
            if not candidates:
                break
            _, node = heapq.heappop(candidates)
            draws[node] = draws.get(node, 0) + 1
            if draws[node] < len(DRAW_GAINS):
                heapq.heappush(candidates, (-open_nodes[node] * DRAW_GAINS[draws[node]], node))
        return draws
