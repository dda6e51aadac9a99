"""The ensemble: asks every member for every session and makes one tree of what they say."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specgrove.draft import ChildLaw
from specgrove.tree import TokenTree
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.member import (
    MAX_MEMBERS,
    ForesightedMember,
    Member,
    MemberDraft,
    StackedMember,
    part_names,
)
from specgrove_drafter.trees.calibration import Calibration
from specgrove_drafter.trees.lawful_trees import jobs_of_drawing, lawful_tree
from specgrove_drafter.trees.outcomes import OutcomeLimits, Path
from specgrove_drafter.trees.proposal import Proposal, as_estimated, join, select_tree
from specgrove_drafter.trees.sent_draft import SentDraft, VerifiedDraft

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnsembleDraft:
    """The tree for one job (the bare root when nobody has anything to say)."""

    tree: TokenTree
    is_behind: bool
    laws: tuple[ChildLaw, ...] = ()  # what the nodes were drawn from, where the verifier wants to know (rule mss)
    proposals: tuple[tuple[int, Proposal], ...] = ()  # by the member's first bit number


@dataclass(frozen=True, slots=True)
class AheadStep:
    """What one step of drafting ahead did for one sent draft."""

    guesses: tuple[Path, ...] = ()  # the outcomes that were drafted under; none while it is still open which
    is_done: bool = True


class Ensemble:
    """Members in the order of their bits: bit i of a node's mask is `member_names[i]`.

    A member takes as many bits as it has models, and is known by the first of them.
    """

    def __init__(self, members: Sequence[Member], calibration: Calibration | None = None) -> None:
        self.member_names = tuple(name for member in members for name in part_names(member))
        if not 1 <= len(self.member_names) <= MAX_MEMBERS:
            raise ValueError(f"an ensemble has 1 to {MAX_MEMBERS} members, got {len(self.member_names)}")
        self._members: dict[int, Member] = {}  # by first bit
        for member in members:
            self._members[sum(len(part_names(earlier)) for earlier in self._members.values())] = member
        self._foresighted = tuple(member for member in members if isinstance(member, ForesightedMember))
        self.calibration = calibration or Calibration()

    def first_bit(self, bit: int) -> int:
        """The bit by which the member that owns `bit` is known."""
        return max(first for first in self._members if first <= bit)

    @property
    def num_forwards(self) -> int:
        """Forwards of all members so far."""
        return sum(member.num_forwards for member in self._foresighted)

    def draft(self, jobs: Sequence[DraftJob]) -> list[EnsembleDraft]:
        """One draft for each job. A member that fails costs its own proposals, nobody else's."""
        nothing = [Proposal()] * len(jobs)
        by_member = {
            bit: self._calibrated(bit, jobs, self._ask(member, jobs, nothing))
            for bit, member in self._members.items()
            if not member.is_costly
        }
        rivals = [join([answers[index].proposal for answers in by_member.values()]) for index in range(len(jobs))]
        by_member |= self._ask_costly(jobs, by_member, rivals)
        return [
            self._combine(job, {bit: answers[index] for bit, answers in by_member.items()})
            for index, job in enumerate(jobs)
        ]

    def _ask_costly(
        self, jobs: Sequence[DraftJob], cheap: Mapping[int, Sequence[MemberDraft]], rivals: Sequence[Proposal]
    ) -> dict[int, list[MemberDraft]]:
        """The costly members' drafts by bit number; under rule `mss` each is asked for its share of the budget."""
        costly = [bit for bit, member in self._members.items() if member.is_costly]
        asked = [
            jobs_of_drawing(job, [answers[index].proposal for answers in cheap.values()], len(costly))
            for index, job in enumerate(jobs)
        ]
        return {
            bit: self._ask(self._members[bit], [shared[place] for shared in asked], rivals)
            for place, bit in enumerate(costly)
        }

    def look_ahead(self, sent: Sequence[SentDraft], limits: OutcomeLimits) -> list[AheadStep]:
        """Draft one level ahead of drafts that are out for verification, all together.

        The first member with foresight says which outcomes are likely; each grows its own tree under them.
        """
        if not self._foresighted:
            return [AheadStep()] * len(sent)
        found = self._foresighted[0].likeliest_outcomes(sent, limits)
        if any(outcomes is None for outcomes in found):  # that took a forward
            return [AheadStep(outcomes or (), is_done=outcomes == ()) for outcomes in found]
        guesses = [outcomes or () for outcomes in found]
        done = [member.grow_ahead(list(zip(sent, guesses, strict=True))) for member in self._foresighted]
        return [AheadStep(paths, all(parts)) for paths, *parts in zip(guesses, *done, strict=True)]

    def learn(self, verified: VerifiedDraft) -> None:
        """Take in what became of a draft."""
        for bit, proposal in verified.draft.proposals:
            self.calibration.learn(bit, verified.draft.job, proposal, verified.token_ids)
            member = self._members[bit]
            if isinstance(member, StackedMember):
                member.learn(verified.draft.job, proposal, verified.token_ids)

    def release(self, session: SessionRef) -> None:
        for member in self._members.values():
            member.release(session)

    def _combine(self, job: DraftJob, parts: Mapping[int, MemberDraft]) -> EnsembleDraft:
        is_behind = any(part.is_behind for part in parts.values())
        if job.is_catching_up:
            return EnsembleDraft(TokenTree.root_only(job.root_token_id), is_behind)
        proposals = [(1 << bit, parts[bit].proposal) for bit in sorted(parts)]
        if job.needs_laws:
            certain = [part for part in proposals if not self._is_costly(part[0])]
            drawn = [part for part in proposals if self._is_costly(part[0])]
            tree, laws = lawful_tree(job.root_token_id, certain, drawn, job.budget)
        else:
            tree, laws = select_tree(job.root_token_id, proposals, job.budget), ()
        return EnsembleDraft(tree, is_behind, laws, tuple((bit, parts[bit].proposal) for bit in sorted(parts)))

    def _is_costly(self, member_bit: int) -> bool:
        return self._members[member_bit.bit_length() - 1].is_costly

    def _calibrated(self, bit: int, jobs: Sequence[DraftJob], parts: Sequence[MemberDraft]) -> list[MemberDraft]:
        """A cheap member's proposals on the scale of all others; costly members grow theirs on it."""
        scales = [self.calibration.scale(bit, job) for job in jobs]
        return [
            part if scale is as_estimated else replace(part, proposal=part.proposal.scaled(scale))
            for part, scale in zip(parts, scales, strict=True)
        ]

    def _ask(self, member: Member, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        try:
            return member.draft(jobs, rivals)
        except Exception:
            _log.exception("a member failed; its sessions start afresh", extra={"member": member.name})
            for job in jobs:
                member.release(job.session)
            return [MemberDraft(Proposal()) for _ in jobs]
