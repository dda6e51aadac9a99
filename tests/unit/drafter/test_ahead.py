"""The account of drafting ahead: hits, waste and hidden time, and nothing kept for sessions that ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from specgrove.telemetry import CollectorRegistry
from specgrove.tree import TokenTree
from specgrove_drafter.ahead import AheadDrafting
from specgrove_drafter.ahead_governor import AheadGovernor, AheadMode
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.member import MemberDraft
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.trees.outcomes import OutcomeLimits, Path
from specgrove_drafter.trees.proposal import Proposal
from specgrove_drafter.trees.sent_draft import SentDraft
from support.drafter_fakes import make_job


@dataclass(slots=True)
class Seer:
    """A member that foresees `guesses` for every draft, in two forwards of one second each."""

    guesses: tuple[Path, ...] = ((4, 9),)
    name: str = "seer"
    is_costly: bool = True
    num_forwards: int = 0
    failure: Exception | None = None
    released: list[SessionRef] = field(default_factory=list)
    _seen: set[SessionRef] = field(default_factory=set)

    def draft(self, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        return [MemberDraft(Proposal()) for _ in jobs]

    def release(self, session: SessionRef) -> None:
        self.released.append(session)

    def likeliest_outcomes(self, sent: Sequence[SentDraft], limits: OutcomeLimits) -> list[tuple[Path, ...] | None]:
        if self.failure is not None:
            raise self.failure
        if all(draft.job.session in self._seen for draft in sent):
            return [self.guesses] * len(sent)
        self._seen |= {draft.job.session for draft in sent}
        self.num_forwards += 1
        return [None] * len(sent)

    def grow_ahead(self, guesses: Sequence[tuple[SentDraft, tuple[Path, ...]]]) -> list[bool]:
        self.num_forwards += 1
        return [True] * len(guesses)


class Rig:
    def __init__(self, seer: Seer | None = None) -> None:
        self.seer = seer or Seer()
        self.registry = CollectorRegistry()
        self.governor = AheadGovernor(AheadMode.ON, max_waste_share=1.0)
        self.ahead = AheadDrafting(
            Ensemble([self.seer]),
            self.governor,
            DrafterMetrics(self.registry, ["seer"]),
            limits=OutcomeLimits(),
            clock=lambda: float(self.seer.num_forwards),
        )
        self.tokens = [1, 2, 3]

    def job(self, key: int = 1) -> DraftJob:
        job = make_job(self.tokens, session=SessionRef(1, key))
        object.__setattr__(job, "token_ids", self.tokens)  # the mirror's own list, which grows
        return job

    def look_ahead(self, *jobs: DraftJob) -> None:
        left = [SentDraft(job, TokenTree.from_paths(job.root_token_id, [(4,)])) for job in jobs]
        while left:
            left = self.ahead.step(left)

    def count(self, name: str) -> float:
        return self.registry.get_sample_value(f"specgrove:drafter_{name}_total") or 0.0


def test_a_base_that_was_foreseen_is_a_hit_and_hides_the_time_of_its_draft() -> None:
    rig = Rig()
    rig.look_ahead(rig.job())
    assert (rig.count("num_ahead_guesses"), rig.count("num_ahead_forwards")) == (1, 2)
    rig.tokens += [4, 9]
    rig.ahead.base_arrived(rig.job())
    assert rig.count("num_ahead_hits") == 1
    assert rig.count("num_ahead_wasted_forwards") == 0
    assert rig.count("ahead_hidden_seconds") == 1  # the search for outcomes is no draft time


@pytest.mark.parametrize("tokens", [[4], [4, 8], [4, 9, 1], [9]])
def test_any_other_base_wastes_the_forwards(tokens: list[int]) -> None:
    rig = Rig()
    rig.look_ahead(rig.job())
    rig.tokens += tokens
    rig.ahead.base_arrived(rig.job())
    assert rig.count("num_ahead_hits") == 0
    assert rig.count("num_ahead_wasted_forwards") == 2
    assert rig.governor.waste.num_wasted == 2


def test_the_same_base_again_settles_nothing() -> None:
    rig = Rig()
    rig.look_ahead(rig.job())
    rig.ahead.base_arrived(rig.job())
    assert rig.count("num_ahead_wasted_forwards") == 0
    rig.tokens += [4, 9]
    rig.ahead.base_arrived(rig.job())
    assert rig.count("num_ahead_hits") == 1


def test_a_session_opened_anew_has_no_hits() -> None:
    rig = Rig()
    rig.look_ahead(rig.job())
    rig.tokens = [*rig.tokens, 4, 9]
    rig.ahead.base_arrived(rig.job())
    assert rig.count("num_ahead_hits") == 0


def test_a_base_that_wants_no_draft_is_no_hit() -> None:
    rig = Rig()
    rig.look_ahead(rig.job())
    rig.tokens += [4, 9]
    rig.ahead.base_arrived(rig.job().without_budget())
    assert rig.count("num_ahead_hits") == 0


def test_a_forward_over_many_sessions_is_shared_between_them() -> None:
    rig = Rig()
    rig.look_ahead(rig.job(1), rig.job(2))
    rig.ahead.forget(SessionRef(1, 1))
    assert rig.count("num_ahead_wasted_forwards") == 1


def test_what_ended_unanswered_is_waste_and_leaves_nothing() -> None:
    rig = Rig()
    rig.look_ahead(rig.job())
    rig.ahead.forget(SessionRef(1, 1))
    rig.ahead.forget(SessionRef(1, 1))
    assert rig.count("num_ahead_wasted_forwards") == 2
    assert rig.ahead._lookaheads == {}


def test_a_failure_ahead_costs_the_caches_and_nothing_else() -> None:
    rig = Rig(Seer(failure=RuntimeError("out of order")))
    rig.look_ahead(rig.job())
    assert rig.seer.released == [SessionRef(1, 1)]
    assert rig.count("num_ahead_forwards") == 0
