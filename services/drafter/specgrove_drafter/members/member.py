"""The seam between the engine and whatever proposes tokens. All calls come from the engine's one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.trees.outcomes import OutcomeLimits, Path
from specgrove_drafter.trees.proposal import Proposal
from specgrove_drafter.trees.sent_draft import SentDraft

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


@runtime_checkable
class StackedMember(Member, Protocol):
    """A member of one or more models, each with a bit of its own; it learns from what became of its drafts."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """Name the models in metrics and in the Hello, in the order of their bits."""
        ...

    def learn(self, job: DraftJob, proposal: Proposal, token_ids: Sequence[int]) -> None:
        """Take in that `token_ids` followed the base under which `proposal` was made."""
        ...


def part_names(member: Member) -> tuple[str, ...]:
    """The names under which a member is counted: its models', or its own."""
    return member.part_names if isinstance(member, StackedMember) else (member.name,)


@runtime_checkable
class ForesightedMember(Member, Protocol):
    """A member whose drafts take forwards, and which can run some of them before the base they are for is known."""

    @property
    def num_forwards(self) -> int:
        """Forwards run so far."""
        ...

    def likeliest_outcomes(self, sent: Sequence[SentDraft], limits: OutcomeLimits) -> list[tuple[Path, ...] | None]:
        """What the verification of each draft most likely comes to: accepted tokens and the target's own.

        At most one forward; None for the drafts for which it was needed: ask again.
        """
        ...

    def grow_ahead(self, guesses: Sequence[tuple[SentDraft, tuple[Path, ...]]]) -> list[bool]:
        """Compute one level more of what drafts under these outcomes will need, at most one forward; for each draft
        whether nothing is left to be done."""
        ...
