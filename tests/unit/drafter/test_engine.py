"""The engine's thread: drafts together, survives failures, ends when told."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from specgrove.telemetry import CollectorRegistry
from specgrove_drafter.ahead import AheadDrafting
from specgrove_drafter.ahead_governor import AheadGovernor, AheadMode
from specgrove_drafter.answers import Answer, Decline, Draft
from specgrove_drafter.engine import DraftEngine
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.inbox import Inbox
from specgrove_drafter.jobs import Budget, DraftJob
from specgrove_drafter.members.member import Member
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.mirror import Committed, Opened
from specgrove_drafter.trees.calibration import Calibration
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, Children
from specgrove_drafter.trees.outcomes import OutcomeLimits, Path
from specgrove_drafter.trees.proposal import Proposal
from support.drafter_fakes import GREEDY, ScriptedMember, TableModel
from support.waiting import wait_until


class Rig:
    def __init__(
        self,
        *members: Member,
        max_batch: int = 8,
        ahead: AheadMode = AheadMode.OFF,
        calibration: Calibration | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.inbox = Inbox(max_sessions=32, max_mirror_tokens=100)
        self.stream = self.inbox.attach(self.answers.put)
        metrics = DrafterMetrics(self.registry, [member.name for member in members])
        ensemble = Ensemble(members, calibration)
        governor = AheadGovernor(ahead, max_waste_share=1.0)
        drafting_ahead = AheadDrafting(ensemble, governor, metrics, limits=OutcomeLimits())
        self.engine = DraftEngine(self.inbox, ensemble, metrics, drafting_ahead, max_batch=max_batch)

    def open(self, key: int) -> None:
        self.inbox.open(self.stream, Opened(key, [1, 2, 3], GREEDY, Budget(8, 4), frozenset()))

    def next_answer(self) -> Answer:
        return self.answers.get(timeout=5)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_sessions_that_wait_are_drafted_together_up_to_the_batch_limit() -> None:
    member = ScriptedMember()
    rig = Rig(member, max_batch=4)
    for key in range(6):
        rig.open(key)
    rig.engine.start()
    answers = [rig.next_answer() for _ in range(6)]
    rig.engine.stop(5)
    assert sorted(answer.session_key for answer in answers) == list(range(6))
    assert member.batches == [4, 2]


def test_a_member_that_always_fails_leads_to_declines_and_the_engine_lives_on() -> None:
    rig = Rig(ScriptedMember(failure=RuntimeError("broken")))
    rig.engine.start()
    for key in range(3):
        rig.open(key)
        assert isinstance(rig.next_answer(), Decline)
    assert rig.engine.is_running
    rig.engine.stop(5)
    assert not rig.engine.is_running


class DeafCalibration(Calibration):
    """Cannot learn."""

    def learn(self, member: int, job: DraftJob, proposal: Proposal, token_ids: Sequence[int]) -> None:
        raise ValueError("no lesson today")


def test_a_failure_to_learn_costs_neither_the_draft_that_is_wanted_nor_the_engine() -> None:
    rig = Rig(ScriptedMember(), calibration=DeafCalibration())
    rig.engine.start()
    rig.open(1)
    assert isinstance(rig.next_answer(), Draft)
    for base_len in (3, 4, 5):
        rig.inbox.commit(rig.stream, Committed(1, base_len, [7], Budget(8, 4)))
        assert isinstance(rig.next_answer(), Draft)
    rig.engine.stop(5)


def test_closed_sessions_are_released_by_the_members() -> None:
    member = ScriptedMember()
    rig = Rig(member)
    rig.engine.start()
    rig.open(1)
    rig.next_answer()
    rig.inbox.close_session(rig.stream, 1)
    rig.open(2)
    rig.next_answer()
    rig.engine.stop(5)
    assert [session.session_key for session in member.released] == [1]


def test_metrics_count_proposed_nodes_by_member_and_depth() -> None:
    rig = Rig(ScriptedMember("a", [(7, 8)]), ScriptedMember("b", [(7,), (9,)]))
    rig.engine.start()
    rig.open(1)
    assert isinstance(rig.next_answer(), Draft)
    rig.engine.stop(5)
    assert rig.value("specgrove:drafter_num_drafts_total") == 1
    assert rig.value("specgrove:drafter_num_draft_tokens_total") == 3
    assert rig.value("specgrove:drafter_num_proposed_tokens_total", member="a", position="0") == 1
    assert rig.value("specgrove:drafter_num_proposed_tokens_total", member="a", position="1") == 1
    assert rig.value("specgrove:drafter_num_proposed_tokens_total", member="b", position="0") == 2


def test_a_commit_while_drafting_is_answered_for_the_newest_base() -> None:
    rig = Rig(ScriptedMember())
    rig.open(1)
    rig.inbox.commit(rig.stream, Committed(1, 3, [4], Budget(8, 4)))
    rig.engine.start()
    assert rig.next_answer().base_len == 4
    rig.engine.stop(5)


LAWS = {3: {4: 0.9}, 4: {5: 0.9}, 5: {6: 0.9}, 6: {7: 0.9}, 7: {8: 0.9}}


class GatedModel(TableModel):
    """Stops in `foresee` until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__(LAWS)
        self.entered = threading.Event()
        self.may_go_on = threading.Event()
        self.calls: list[str] = []

    def start(self, jobs: Sequence[DraftJob], num_children: int, enough: Sequence[int] = ()) -> list[Children | None]:
        self.calls.append("start")
        return super().start(jobs, num_children)

    def foresee(self, wanted: Sequence[tuple[DraftJob, Path]], num_children: int) -> list[Children | None]:
        self.calls.append("foresee")
        self.entered.set()
        assert self.may_go_on.wait(5)
        return super().foresee(wanted, num_children)


def ssm_rig(model: TableModel) -> Rig:
    return Rig(SsmMember("ssm", model, BestFirstPolicy(BestFirst())), ahead=AheadMode.ON)


def test_what_was_foreseen_is_counted_as_a_hit() -> None:
    model = TableModel(LAWS)
    rig = ssm_rig(model)
    rig.engine.start()
    rig.open(1)
    draft = rig.next_answer()
    assert isinstance(draft, Draft)
    wait_until(lambda: rig.value("specgrove:drafter_num_ahead_guesses_total") == 1, timeout_s=5, what="a guess")
    rig.inbox.commit(rig.stream, Committed(1, 3, [4, 5, 6, 7, 8], Budget(8, 4)))
    assert rig.next_answer().base_len == 8
    rig.engine.stop(5)
    assert rig.value("specgrove:drafter_num_ahead_hits_total") == 1
    assert rig.value("specgrove:drafter_num_ahead_wasted_forwards_total") == 0


def test_a_commit_stops_drafting_ahead_before_the_next_forward() -> None:
    model = GatedModel()
    rig = ssm_rig(model)
    rig.engine.start()
    rig.open(1)
    rig.next_answer()
    assert model.entered.wait(5)
    rig.inbox.commit(rig.stream, Committed(1, 3, [9], Budget(0, 0)))
    model.may_go_on.set()
    rig.inbox.open(rig.stream, Opened(2, [99], GREEDY, Budget(8, 4), frozenset()))
    assert isinstance(rig.next_answer(), Decline)  # the engine has come round
    rig.engine.stop(5)
    assert model.foreseen == [[(4, 5, 6, 7)]]  # the forward that was running, and no more


def test_who_waits_is_served_before_more_is_drafted_ahead() -> None:
    model = GatedModel()
    rig = ssm_rig(model)
    rig.engine.start()
    rig.open(1)
    rig.next_answer()
    assert model.entered.wait(5)
    rig.open(2)
    model.may_go_on.set()
    assert rig.next_answer().session_key == 2
    rig.engine.stop(5)
    assert model.calls[:3] == ["start", "foresee", "start"]


def test_drafting_ahead_that_is_off_runs_nothing() -> None:
    model = TableModel(LAWS)
    rig = Rig(SsmMember("ssm", model, BestFirstPolicy(BestFirst())))
    rig.engine.start()
    rig.open(1)
    rig.next_answer()
    rig.open(2)
    rig.next_answer()
    rig.engine.stop(5)
    assert model.foreseen == []


def test_a_budget_that_shrank_cuts_what_was_foreseen() -> None:
    model = TableModel(LAWS)
    rig = ssm_rig(model)
    rig.engine.start()
    rig.open(1)
    rig.next_answer()
    wait_until(lambda: rig.value("specgrove:drafter_num_ahead_guesses_total") == 1, timeout_s=5, what="a guess")
    rig.inbox.commit(rig.stream, Committed(1, 3, [4, 5, 6, 7, 8], Budget(0, 0)))
    rig.inbox.commit(rig.stream, Committed(1, 8, [4], Budget(1, 1)))
    draft = rig.next_answer()
    rig.engine.stop(5)
    assert isinstance(draft, Draft)
    assert draft.tree.paths() == {(), (5,)}
