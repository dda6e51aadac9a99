"""Mirrors and who wants a draft: newest wins, lost places are said, verifiers are served in turn."""

from __future__ import annotations

from collections.abc import Sequence

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.tree import TokenTree
from specgrove_drafter.answers import Answer, Decline, DeclineReason, Draft
from specgrove_drafter.inbox import Inbox, Work
from specgrove_drafter.jobs import ZERO_BUDGET, Budget, DraftJob
from specgrove_drafter.mirror import AcceptedNode, Committed, Opened
from support.drafter_fakes import GREEDY

BUDGET = Budget(8, 4)


class Rig:
    """An inbox with one stream whose answers are kept."""

    def __init__(self, max_sessions: int = 4, max_mirror_tokens: int = 100) -> None:
        self.now_s = 0.0
        self.inbox = Inbox(max_sessions=max_sessions, max_mirror_tokens=max_mirror_tokens, clock=lambda: self.now_s)
        self.answers: list[Answer] = []
        self.stream = self.inbox.attach(self.answers.append)

    def open(self, key: int, tokens: Sequence[int] = (1, 2, 3), budget: Budget = BUDGET) -> Decline | None:
        return self.inbox.open(self.stream, Opened(key, tokens, GREEDY, budget, frozenset()))

    def commit(
        self, key: int, from_len: int, tokens: Sequence[int], budget: Budget = BUDGET
    ) -> tuple[Decline | None, list[AcceptedNode]]:
        return self.inbox.commit(self.stream, Committed(key, from_len, tokens, budget))

    def take(self, max_jobs: int = 8) -> Work:
        work = self.inbox.take(max_jobs, timeout_s=0.0)
        assert work is not None
        return work

    def take_one(self) -> DraftJob:
        [job] = self.take().jobs
        return job


def tree_for(job: DraftJob, *paths: Sequence[int]) -> TokenTree:
    return TokenTree.from_paths(job.root_token_id, paths)


def test_an_open_wants_a_draft_and_gets_its_answer() -> None:
    rig = Rig()
    assert rig.open(7) is None
    job = rig.take_one()
    assert (job.base_len, job.root_token_id) == (3, 3)
    assert job.base_hash == extend_hash(EMPTY_HASH, [1, 2, 3])
    rig.now_s = 0.25
    rig.inbox.finish(job, tree_for(job, [4, 5]))
    assert rig.answers == [Draft(7, 3, job.base_hash, tree_for(job, [4, 5]), 0.25)]
    assert rig.take().jobs == ()


def test_commits_coalesce_and_only_the_newest_base_is_drafted() -> None:
    rig = Rig()
    rig.open(7)
    rig.commit(7, 3, [4])
    rig.commit(7, 4, [5, 6])
    job = rig.take_one()
    assert list(job.token_ids[: job.base_len]) == [1, 2, 3, 4, 5, 6]
    assert job.base_hash == extend_hash(EMPTY_HASH, [1, 2, 3, 4, 5, 6])
    assert rig.take().jobs == ()


def test_a_draft_for_a_base_that_is_gone_is_dropped() -> None:
    rig = Rig()
    rig.open(7)
    job = rig.take_one()
    rig.commit(7, 3, [4])
    assert rig.inbox.finish(job, tree_for(job, [4])) is None
    assert rig.answers == []
    assert rig.take_one().base_len == 4


def test_a_snapshot_does_not_change_when_the_mirror_grows() -> None:
    rig = Rig()
    rig.open(7)
    job = rig.take_one()
    rig.commit(7, 3, [4])
    assert (job.base_len, job.root_token_id) == (3, 3)


def test_a_commit_that_does_not_fit_loses_the_place_and_an_open_finds_it_again() -> None:
    rig = Rig()
    rig.open(7)
    decline, accepted = rig.commit(7, 5, [9])
    assert decline == Decline(7, 6, DeclineReason.LOST_PLACE)
    assert accepted == []
    assert rig.take().jobs == ()
    rig.open(7, [1, 2, 3, 4, 5, 9])
    assert rig.take_one().base_len == 6


def test_a_commit_for_an_unknown_session_asks_for_an_open() -> None:
    decline, _ = Rig().commit(99, 5, [1])
    assert decline == Decline(99, 6, DeclineReason.LOST_PLACE)


def test_sessions_beyond_the_capacity_are_declined() -> None:
    rig = Rig(max_sessions=1)
    rig.open(1)
    assert rig.open(2) == Decline(2, 3, DeclineReason.NO_CAPACITY)
    assert rig.commit(2, 3, [1])[0] == Decline(2, 4, DeclineReason.NO_CAPACITY)
    assert rig.open(1, [5, 6]) is None
    rig.inbox.close_session(rig.stream, 1)
    assert rig.open(2) is None


def test_contexts_beyond_the_limit_are_declined() -> None:
    rig = Rig(max_mirror_tokens=4)
    assert rig.open(1, [1] * 5) == Decline(1, 5, DeclineReason.NO_CAPACITY)
    rig.open(1, [1] * 4)
    assert rig.commit(1, 4, [2])[0] == Decline(1, 5, DeclineReason.NO_CAPACITY)
    assert rig.inbox.num_mirrors() == 0


def test_a_zero_budget_wants_no_draft() -> None:
    rig = Rig()
    rig.open(7, budget=ZERO_BUDGET)
    assert rig.take().jobs == ()
    rig.commit(7, 3, [4])
    rig.commit(7, 4, [5], ZERO_BUDGET)
    assert rig.take().jobs == ()
    rig.commit(7, 5, [6])
    assert rig.take_one().base_len == 6


def test_nothing_to_propose_is_said() -> None:
    rig = Rig()
    rig.open(7)
    job = rig.take_one()
    rig.inbox.finish(job, TokenTree.root_only(job.root_token_id))
    assert rig.answers == [Decline(7, 3, DeclineReason.NOTHING_TO_PROPOSE)]


def test_a_session_that_is_behind_is_tried_again_before_anything_is_said() -> None:
    rig = Rig()
    rig.open(7)
    job = rig.take_one()
    rig.inbox.finish(job, None, is_behind=True)
    assert rig.answers == []
    assert rig.take_one().base_len == 3


def test_a_session_that_is_behind_but_has_a_tree_catches_up_when_nobody_waits() -> None:
    rig = Rig()
    rig.open(7)
    job = rig.take_one()
    rig.inbox.finish(job, tree_for(job, [4]), is_behind=True)
    assert len(rig.answers) == 1
    rig.open(8)
    assert not rig.take_one().is_catching_up
    idle = rig.take_one()
    assert idle.is_catching_up
    assert idle.session.session_key == 7
    rig.inbox.finish(idle, None, is_behind=True)
    assert rig.take_one().is_catching_up
    rig.inbox.finish(idle, None)
    assert rig.take().jobs == ()
    assert len(rig.answers) == 1


def test_verifiers_are_served_in_turn() -> None:
    rig = Rig(max_sessions=10)
    other = rig.inbox.attach(rig.answers.append)
    for key in range(6):
        rig.open(key)
    for key in range(2):
        rig.inbox.open(other, Opened(key, [1], GREEDY, BUDGET, frozenset()))
    streams = [job.session.stream_id for job in rig.take(max_jobs=4).jobs]
    assert streams == [rig.stream, other, rig.stream, other]


def test_a_session_keeps_its_place_in_the_queue_when_it_commits_again() -> None:
    rig = Rig()
    for key in (1, 2, 3):
        rig.open(key)
    rig.commit(1, 3, [4])
    assert [job.session.session_key for job in rig.take(max_jobs=1).jobs] == [1]


def test_a_commit_tells_which_nodes_of_the_last_tree_were_accepted() -> None:
    rig = Rig()
    rig.open(7)
    job = rig.take_one()
    rig.inbox.finish(job, TokenTree((3, 4, 5, 6), (-1, 0, 1, 0), (0, 1, 3, 2)))
    _, accepted = rig.commit(7, 3, [4, 5, 9])
    assert accepted == [AcceptedNode(1, 1), AcceptedNode(3, 2)]
    _, accepted = rig.commit(7, 6, [4])
    assert accepted == []


def test_the_engine_is_told_to_forget_sessions_it_has_seen() -> None:
    rig = Rig()
    rig.open(1)
    rig.open(2)
    seen = rig.take(max_jobs=1).jobs[0].session
    rig.inbox.close_session(rig.stream, 1)
    rig.inbox.close_session(rig.stream, 2)
    assert rig.take().released == (seen,)


def test_the_end_of_a_stream_releases_its_mirrors() -> None:
    rig = Rig()
    rig.open(1)
    job = rig.take_one()
    rig.inbox.detach(rig.stream)
    assert rig.inbox.num_mirrors() == 0
    assert rig.inbox.finish(job, tree_for(job, [4])) is None
    assert rig.take().released == (job.session,)


def test_a_draft_of_the_mirror_before_a_reopen_is_dropped() -> None:
    rig = Rig()
    rig.open(1)
    job = rig.take_one()
    rig.open(1, [1, 2, 9])
    assert rig.inbox.finish(job, tree_for(job, [4])) is None
    assert rig.answers == []


def test_closing_the_inbox_ends_the_engine() -> None:
    rig = Rig()
    rig.inbox.close()
    assert rig.inbox.take(4) is None
