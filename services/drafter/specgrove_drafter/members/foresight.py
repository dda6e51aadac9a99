"""Drafting ahead with one SSM: while a tree is verified, compute what the draft under its likeliest outcomes will need.

A call is at most one forward over all sessions: first the laws that tell which outcomes are likely, then the tree below
each of them, level by level. Nothing is kept here: what is computed stays with the model (`computed_rows`), each call
goes over it again and stops at the first law that is missing. So work can be dropped after any forward, and what is
there is used whether it was finished or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.members.draft_model import DraftModel
from specgrove_drafter.trees.growth import Children, GrowthPolicy
from specgrove_drafter.trees.outcomes import OutcomeLimits, Outcomes, Path, likeliest_outcomes
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal, Scale
from specgrove_drafter.trees.sent_draft import SentDraft

NO_OUTCOMES = Outcomes(())


class Foresight:
    """Looks ahead of one SSM's sessions; trees get the shapes and estimates that real drafts would have."""

    def __init__(
        self, model: DraftModel, policy_of: Callable[[DraftJob], GrowthPolicy], scale_of: Callable[[DraftJob], Scale]
    ) -> None:
        self._model = model
        self._policy_of = policy_of
        self._scale_of = scale_of

    def outcomes(self, sent: Sequence[SentDraft], limits: OutcomeLimits) -> list[tuple[Path, ...] | None]:
        """The likeliest outcomes of each draft; None where a forward was needed to tell: ask again."""
        found = [self._outcomes_of(draft, limits) for draft in sent]
        wanted = [(index, path) for index, outcomes in enumerate(found) for path in outcomes.unknown]
        computed = self._foresee([(sent[index], path) for index, path in wanted])
        waiting = {index for (index, _), is_computed in zip(wanted, computed, strict=True) if is_computed}
        return [None if index in waiting else outcomes.paths for index, outcomes in enumerate(found)]

    def grow(self, guesses: Sequence[tuple[SentDraft, tuple[Path, ...]]]) -> list[bool]:
        """One level more below the outcomes of each draft; whether that was all there is to do."""
        wanted = [
            (index, path)
            for index, (draft, outcomes) in enumerate(guesses)
            for outcome in outcomes
            for path in self._missing_below(draft, outcome)
        ]
        computed = self._foresee([(guesses[index][0], path) for index, path in wanted])
        waiting = {index for (index, _), is_computed in zip(wanted, computed, strict=True) if is_computed}
        return [index not in waiting for index in range(len(guesses))]

    def _outcomes_of(self, draft: SentDraft, limits: OutcomeLimits) -> Outcomes:
        job = draft.job
        # Without the root's law the session is not read: catching up comes first.
        if self._law_after(job, ()) is None:
            return NO_OUTCOMES
        max_depth = self._model.max_depth(job)

        def law_after(path: Path) -> Children | None:
            # Other members' nodes may stand where the model's context has ended: no law is ever known there.
            return self._law_after(job, path) if len(path) <= max_depth else Children()

        return likeliest_outcomes(draft, law_after, self._scale_of(job), limits)

    def _missing_below(self, draft: SentDraft, outcome: Path) -> list[Path]:
        """The nodes that the tree below `outcome` needs next and that are not computed."""
        job = draft.job
        law = self._law_after(job, outcome)
        if law is None:
            return [outcome] if len(outcome) <= self._model.max_depth(job) else []
        levels_left = self._model.max_depth(job) - len(outcome)
        growth = self._policy_of(job).start(job, job.budget.capped(job.budget.max_nodes, levels_left), Proposal())
        growth.proposal.scale = self._scale_of(job)
        growth.add_children(BELOW_ROOT, law)
        paths: dict[int, Path] = {BELOW_ROOT: outcome}
        while nodes := growth.next_nodes():
            missing: list[Path] = []
            for node in nodes:
                path = paths[node] = (*paths[growth.proposal.parents[node]], growth.proposal.token_ids[node])
                law = self._law_after(job, path)
                if law is None:
                    missing.append(path)
                else:
                    growth.add_children(node, law)
            if missing:
                return missing
        return []

    def _law_after(self, job: DraftJob, path: Path) -> Children | None:
        return self._model.law_after(job, path, self._policy_of(job).num_children)

    def _foresee(self, wanted: Sequence[tuple[SentDraft, Path]]) -> list[bool]:
        """Compute what follows each path in one forward; where there was no room, False."""
        if not wanted:
            return []
        num_children = max(self._policy_of(draft.job).num_children for draft, _ in wanted)
        laws = self._model.foresee([(draft.job, path) for draft, path in wanted], num_children)
        return [law is not None for law in laws]
