"""Typed fakes of the drafter's seams: a model with a fixed law, jobs made by hand, a member that follows a script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.sampling.params import SamplingParams
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef
from specgrove_drafter.members.draft_model import Expanded, NodeRow
from specgrove_drafter.members.member import Member, MemberDraft
from specgrove_drafter.trees.growth import Children
from specgrove_drafter.trees.outcomes import Path
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal

GREEDY = SamplingParams(temperature=0.0)


def make_job(
    token_ids: Sequence[int] = (1, 2, 3),
    *,
    budget: Budget = Budget(8, 4),
    session: SessionRef = SessionRef(1, 1),
    sampling: SamplingParams = GREEDY,
    stop_token_ids: frozenset[int] = frozenset(),
    opened_len: int | None = None,
) -> DraftJob:
    """A draft job with `token_ids` as its whole base."""
    return DraftJob(
        session=session,
        token_ids=list(token_ids),
        base_len=len(token_ids),
        base_hash=extend_hash(EMPTY_HASH, token_ids),
        opened_len=len(token_ids) if opened_len is None else opened_len,
        sampling=sampling,
        stop_token_ids=stop_token_ids,
        budget=budget,
        arrived_s=0.0,
    )


def ask(member: Member, jobs: Sequence[DraftJob], rivals: Proposal | None = None) -> list[MemberDraft]:
    """What `member` says to `jobs` when cheaper members propose `rivals` (nothing) for each."""
    return member.draft(jobs, [rivals or Proposal()] * len(jobs))


def children(law: Mapping[int, float]) -> Children:
    """Children from token -> probability."""
    ranked = sorted(law.items(), key=lambda entry: -entry[1])
    return Children(tuple(token for token, _ in ranked), tuple(math.log(prob) for _, prob in ranked))


@dataclass(slots=True)
class TableModel:
    """A draft model whose law depends on the last token alone; remembers the calls it got."""

    laws: Mapping[int, Mapping[int, float]]
    depth_limit: int = 100
    starts: int = 0
    unread: set[SessionRef] = field(default_factory=set)
    rounds: list[list[NodeRow]] = field(default_factory=list)
    foreseen: list[list[Path]] = field(default_factory=list)
    has_room: bool = True
    released: list[SessionRef] = field(default_factory=list)
    _paths: list[tuple[int, ...]] = field(default_factory=list)
    _known: set[tuple[SessionRef, Path]] = field(default_factory=set)  # (session, whole base and path)

    @property
    def num_forwards(self) -> int:
        return self.starts + len(self.rounds) + len(self.foreseen)

    def law_after(self, job: DraftJob, path: Path, num_children: int) -> Children | None:
        """The law where it was computed, by any call, or asked for at the root of a base that is read."""
        is_known = (not path and job.session not in self.unread) or self._key(job, path) in self._known
        return self._law((job.root_token_id, *path)[-1], num_children) if is_known else None

    def foresee(self, wanted: Sequence[tuple[DraftJob, Path]], num_children: int) -> list[Children | None]:
        if not self.has_room:
            return [None] * len(wanted)
        self.foreseen.append([path for _, path in wanted])
        self._known |= {self._key(job, path) for job, path in wanted}
        return [self.law_after(job, path, num_children) for job, path in wanted]

    def start(self, jobs: Sequence[DraftJob], num_children: int, enough: Sequence[int] = ()) -> list[Children | None]:
        self.starts += 1
        return [None if job.session in self.unread else self._law(job.root_token_id, num_children) for job in jobs]

    def extend(self, nodes: Sequence[NodeRow], num_children: int, enough: Sequence[int] = ()) -> list[Expanded]:
        self.rounds.append(list(nodes))
        expanded = []
        for node in nodes:
            above = () if node.parent_row < 0 else self._paths[node.parent_row]
            assert len(above) + 1 == node.depth
            self._paths.append((*above, node.token_id))
            self._known.add(self._key(node.job, self._paths[-1]))
            expanded.append(Expanded(len(self._paths) - 1, self._law(node.token_id, num_children)))
        return expanded

    def max_depth(self, job: DraftJob) -> int:
        return self.depth_limit

    def release(self, session: SessionRef) -> None:
        self.released.append(session)

    @staticmethod
    def _key(job: DraftJob, path: Path) -> tuple[SessionRef, Path]:
        return job.session, (*job.token_ids[: job.base_len], *path)

    def _law(self, token_id: int, num_children: int) -> Children:
        full = children(self.laws.get(token_id, {}))
        return Children(full.token_ids[:num_children], full.log_probs[:num_children])


@dataclass(slots=True)
class ScriptedMember:
    """Proposes the same chains for every job; raises instead when `failure` is set."""

    name: str = "scripted"
    chains: Sequence[Sequence[int]] = ((7, 8),)
    prob: float = 0.5
    is_behind: bool = False
    failure: Exception | None = None
    is_costly: bool = False
    released: list[SessionRef] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def draft(self, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        self.batches.append(len(jobs))
        if self.failure is not None:
            raise self.failure
        return [MemberDraft(chain_proposal(self.chains, self.prob), self.is_behind) for _ in jobs]

    def release(self, session: SessionRef) -> None:
        self.released.append(session)


def chain_proposal(chains: Sequence[Sequence[int]], prob: float) -> Proposal:
    """A proposal of chains, each node with conditional probability `prob`."""
    proposal = Proposal()
    for chain in chains:
        parent = BELOW_ROOT
        for token_id in chain:
            parent = proposal.add(parent, token_id, math.log(prob))
    return proposal
