"""The SSM member: grows a tree for every session at once, one packed forward for each level."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.draft_model import ROOT_ROW, DraftModel, NodeRow
from specgrove_drafter.members.foresight import Foresight
from specgrove_drafter.members.member import MemberDraft
from specgrove_drafter.trees.child_sampler import ChildSampler
from specgrove_drafter.trees.growth import Growth, GrowthPolicy
from specgrove_drafter.trees.job_policies import JobPolicies, NaiveChildren
from specgrove_drafter.trees.mixing import Mixing
from specgrove_drafter.trees.outcomes import OutcomeLimits, Path
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal, Scale, as_estimated
from specgrove_drafter.trees.sent_draft import SentDraft

# Rivals that fill the budget with nodes this likely leave no place that is worth a forward.
SURE_PATH_PROB = 0.5


class SsmMember:
    """An ensemble member over a `DraftModel`; `policy` is the shape of its trees, `scale_of` the calibration.

    SSMs that run as one are one member: `part_names` are theirs, and `mixing` learns how much each counts.
    """

    is_costly = True

    def __init__(
        self,
        name: str,
        model: DraftModel,
        policy: GrowthPolicy,
        scale_of: Callable[[DraftJob], Scale] = lambda job: as_estimated,
        *,
        sampler: ChildSampler | None = None,
        naive_children: NaiveChildren = "topk",
        part_names: Sequence[str] = (),
        mixing: Mixing | None = None,
    ) -> None:
        self.name = name
        self.part_names = tuple(part_names) or (name,)
        self._mixing = mixing
        self._model = model
        self._policies = JobPolicies(policy, sampler or ChildSampler.fresh(), naive_children)
        self._scale_of = scale_of
        self._foresight = Foresight(model, self._policies.policy_of, scale_of)

    def draft(self, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        drafts = [MemberDraft(Proposal()) for _ in jobs]
        # What is skipped now is read with the next base: rows are cheap, forwards are not.
        wanted = [i for i, job in enumerate(jobs) if job.is_catching_up or not _is_hopeless(job, rivals[i])]
        if wanted:
            for index, draft in zip(
                wanted, self._draft([jobs[i] for i in wanted], [rivals[i] for i in wanted]), strict=True
            ):
                drafts[index] = draft
        return drafts

    def _draft(self, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        policies = [self._policies.policy_of(job) for job in jobs]
        num_children = [policy.num_children for policy in policies]
        roots = self._model.start(jobs, max(num_children), num_children)
        growths: dict[int, Growth] = {}
        for index, (job, children) in enumerate(zip(jobs, roots, strict=True)):
            if children is not None and not job.is_catching_up:
                budget = job.budget.capped(job.budget.max_nodes, self._model.max_depth(job))
                growths[index] = policies[index].start(job, budget, rivals[index])
                growths[index].proposal.scale = self._scale_of(job)
                growths[index].add_children(BELOW_ROOT, children)
        self._grow(jobs, growths, num_children)
        return [
            MemberDraft(growths[index].proposal if index in growths else Proposal(), is_behind=children is None)
            for index, children in enumerate(roots)
        ]

    def release(self, session: SessionRef) -> None:
        self._model.release(session)

    def learn(self, job: DraftJob, proposal: Proposal, token_ids: Sequence[int]) -> None:
        """Take in that `token_ids` followed the base of an earlier draft of this member."""
        if self._mixing is not None:
            self._mixing.learn(job, proposal, token_ids)

    @property
    def num_forwards(self) -> int:
        return self._model.num_forwards

    def likeliest_outcomes(self, sent: Sequence[SentDraft], limits: OutcomeLimits) -> list[tuple[Path, ...] | None]:
        return self._foresight.outcomes(sent, limits)

    def grow_ahead(self, guesses: Sequence[tuple[SentDraft, tuple[Path, ...]]]) -> list[bool]:
        return self._foresight.grow(guesses)

    def _grow(self, jobs: Sequence[DraftJob], growths: dict[int, Growth], num_children: Sequence[int]) -> None:
        row_of: dict[tuple[int, int], int] = {}  # (job, node) -> the model's row
        while True:
            # A base that has grown meanwhile is not worth another forward.
            live = [index for index in growths if not jobs[index].is_overtaken]
            wanted = [(index, node) for index in live for node in growths[index].next_nodes()]
            if not wanted:
                return
            rows = []
            for index, node in wanted:
                proposal = growths[index].proposal
                parent = proposal.parents[node]
                parent_row = ROOT_ROW if parent == BELOW_ROOT else row_of[index, parent]
                rows.append(NodeRow(jobs[index], parent_row, proposal.token_ids[node], proposal.depths[node]))
            enough = [num_children[index] for index, _ in wanted]
            for (index, node), expanded in zip(wanted, self._model.extend(rows, max(enough), enough), strict=True):
                row_of[index, node] = expanded.row
                growths[index].add_children(node, expanded.children)


def _is_hopeless(job: DraftJob, rivals: Proposal) -> bool:
    """Whether cheaper members have filled the whole budget with likely nodes."""
    if job.needs_laws:
        return False  # the share of its budget is its own
    likely = sum(score >= math.log(SURE_PATH_PROB) for score in rivals.log_path_probs)
    return likely >= job.budget.max_nodes
