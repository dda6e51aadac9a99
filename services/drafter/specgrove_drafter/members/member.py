"""The seam between the engine and whatever proposes tokens. All calls come from the engine's one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.trees.proposal import Proposal

MAX_MEMBERS = 31  # members travel as a bitmask in a uint32


@dataclass(frozen=True, slots=True)
class MemberDraft:
    """One member's part of one draft; an empty proposal is a fair answer."""

    proposal: Proposal
    is_behind: bool = False  # still reading a long context: asked again, it would have more to say


class Member(Protocol):
    """Proposes paths below the base. It may propose too much: the ensemble picks the best nodes under the budget."""

    @property
    def name(self) -> str:
        """Names the member in metrics and in the Hello."""
        ...

    @property
    def is_costly(self) -> bool:
        """Whether drafting takes model forwards. Costly members are asked last and see what the others propose."""
        ...

    def draft(self, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        """One draft for each job, in order. Jobs with a zero budget only bring the member's caches up to date.

        `rivals[i]` is what cheaper members propose for job i, for members that save work where they cannot win.
        """
        ...

    def release(self, session: SessionRef) -> None:
        """Forget a session; unknown ones are fine."""
        ...
