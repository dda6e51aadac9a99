"""The seam between tree growth and a model: laws at the root of each session, then laws below chosen nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.trees.growth import Children
from specgrove_drafter.trees.outcomes import Path

ROOT_ROW = -1


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node to expand: its token follows `parent_row` (a number that `extend` gave out, or ROOT_ROW)."""

    job: DraftJob
    parent_row: int
    token_id: int
    depth: int  # 1 = child of the root


@dataclass(frozen=True, slots=True)
class Expanded:
    """What stands below an expanded node, and the row number under which its own children continue."""

    row: int
    children: Children


class DraftModel(Protocol):
    """One SSM. Every call is at most one packed forward over all sessions named in it.

    What has to be run gives `num_children` children; of what is known already `enough[i]` suffice for entry i (without
    `enough` as many), or a session with wide trees would have the others' work ahead done again.
    """

    def start(self, jobs: Sequence[DraftJob], num_children: int, enough: Sequence[int] = ()) -> list[Children | None]:
        """The children of each job's root, reading whatever part of the base is not cached yet; None where that is
        not finished within this call."""
        ...

    def extend(self, nodes: Sequence[NodeRow], num_children: int, enough: Sequence[int] = ()) -> list[Expanded]:
        """The children below each node. Only for sessions whose `start` succeeded in the same draft."""
        ...

    @property
    def num_forwards(self) -> int:
        """Packed forwards run so far."""
        ...

    def law_after(self, job: DraftJob, path: Path, num_children: int) -> Children | None:
        """The children after `path` below a base, as far as they were computed already; None where they were not."""
        ...

    def foresee(self, wanted: Sequence[tuple[DraftJob, Path]], num_children: int) -> list[Children | None]:
        """Compute the children after each path, so that `law_after`, `extend` and the `start` of a base that takes the
        path find them; None where there is no room. Takes no room from other sessions."""
        ...

    def max_depth(self, job: DraftJob) -> int:
        """How deep a tree under this base may grow before the model's context ends."""
        ...

    def release(self, session: SessionRef) -> None: ...
