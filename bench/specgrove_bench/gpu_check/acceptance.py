"""Synthetic acceptance: what the target would choose, were its acceptance as given. An aid for timing random weights.

by_depth (0.8, 0.5)     root ── child: with 0.8 ── its child: with 0.5 ── deeper: never
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

NO_CHILD_TOKEN = 0  # a token that no node of a synthetic tree carries


@dataclass(frozen=True, slots=True)
class SyntheticAcceptance:
    """The chance that a path which reached depth d - 1 is accepted at depth d as well, for d = 1, 2, ..."""

    by_depth: tuple[float, ...]

    def __post_init__(self) -> None:
        if any(not 0.0 <= share <= 1.0 for share in self.by_depth):
            raise ValueError(f"acceptance is a share between 0 and 1 for each depth, got {self.by_depth}")

    @classmethod
    def parse(cls, text: str) -> SyntheticAcceptance:
        """Read `0.8,0.7,0.6`."""
        return cls(tuple(float(part) for part in text.split(",")))

    def choices(self, token_ids: Sequence[int], parents: Sequence[int], draw: random.Random) -> list[int]:
        """The target's token after each node of a tree: one accepted path, drawn by depth, and nothing else matches."""
        choices = [NO_CHILD_TOKEN] * len(parents)
        node = 0
        for share in self.by_depth:
            children = [child for child, parent in enumerate(parents) if parent == node and child > 0]
            if not children or draw.random() >= share:
                break
            child = draw.choice(children)
            choices[node] = token_ids[child]
            node = child
        return choices


def tree_tokens(parents: Sequence[int]) -> list[int]:
    """Token ids for a synthetic tree: siblings differ, and none is `NO_CHILD_TOKEN`."""
    return [node + 1 for node in range(len(parents))]
