"""The ensemble: asks every member for every session and makes one tree of what they say."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specgrove.tree import TokenTree
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.member import MAX_MEMBERS, Member, MemberDraft
from specgrove_drafter.trees.proposal import Proposal, join, select_tree

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnsembleDraft:
    """The tree for one job (the bare root when nobody has anything to say)."""

    tree: TokenTree
    is_behind: bool


class Ensemble:
    """Members in the order of their bits: bit i of a node's mask is `member_names[i]`."""

    def __init__(self, members: Sequence[Member]) -> None:
        if not 1 <= len(members) <= MAX_MEMBERS:
            raise ValueError(f"an ensemble has 1 to {MAX_MEMBERS} members, got {len(members)}")
        self._members = tuple(members)

    @property
    def member_names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self._members)

    def draft(self, jobs: Sequence[DraftJob]) -> list[EnsembleDraft]:
        """One draft for each job. A member that fails costs its own proposals, nobody else's."""
        nothing = [Proposal()] * len(jobs)
        by_member = {
            bit: self._ask(member, jobs, nothing) for bit, member in enumerate(self._members) if not member.is_costly
        }
        rivals = [join([answers[index].proposal for answers in by_member.values()]) for index in range(len(jobs))]
        by_member |= {
            bit: self._ask(member, jobs, rivals) for bit, member in enumerate(self._members) if member.is_costly
        }
        return [
            self._combine(job, {bit: answers[index] for bit, answers in by_member.items()})
            for index, job in enumerate(jobs)
        ]

    def release(self, session: SessionRef) -> None:
        for member in self._members:
            member.release(session)

    def _combine(self, job: DraftJob, parts: Mapping[int, MemberDraft]) -> EnsembleDraft:
        is_behind = any(part.is_behind for part in parts.values())
        if job.is_catching_up:
            return EnsembleDraft(TokenTree.root_only(job.root_token_id), is_behind)
        proposals = [(1 << bit, parts[bit].proposal) for bit in sorted(parts)]
        return EnsembleDraft(select_tree(job.root_token_id, proposals, job.budget), is_behind)

    def _ask(self, member: Member, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        try:
            return member.draft(jobs, rivals)
        except Exception:
            _log.exception("a member failed; its sessions start afresh", extra={"member": member.name})
            for job in jobs:
                member.release(job.session)
            return [MemberDraft(Proposal()) for _ in jobs]
