"""The engine's thread: drafts together, survives failures, ends when told."""

from __future__ import annotations

import queue

from specgrove.telemetry import CollectorRegistry
from specgrove_drafter.engine import DraftEngine
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.inbox import Answer, Decline, Draft, Inbox
from specgrove_drafter.jobs import Budget
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.mirror import Committed, Opened
from support.drafter_fakes import GREEDY, ScriptedMember


class Rig:
    def __init__(self, *members: ScriptedMember, max_batch: int = 8) -> None:
        self.registry = CollectorRegistry()
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.inbox = Inbox(max_sessions=32, max_mirror_tokens=100)
        self.stream = self.inbox.attach(self.answers.put)
        metrics = DrafterMetrics(self.registry, [member.name for member in members])
        self.engine = DraftEngine(self.inbox, Ensemble(members), metrics, max_batch=max_batch)

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
