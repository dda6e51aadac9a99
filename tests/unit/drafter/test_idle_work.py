"""What the inbox hands out when nobody waits: contexts to be read, then sent drafts to be looked ahead of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.tree import TokenTree
from specgrove_drafter.answers import Answer
from specgrove_drafter.inbox import CATCH_UP_TOKENS, MAX_VERIFIED, Inbox, Work
from specgrove_drafter.jobs import ZERO_BUDGET, Budget, DraftJob
from specgrove_drafter.mirror import Committed, Opened
from specgrove_drafter.trees.sent_draft import SentDraft
from support.drafter_fakes import GREEDY, chain_proposal

BUDGET = Budget(8, 4)
LONG = [5] * CATCH_UP_TOKENS


class Rig:
    """An inbox with one stream."""

    def __init__(self) -> None:
        self.inbox = Inbox(max_sessions=300, max_mirror_tokens=1000)
        self.answers: list[Answer] = []
        self.stream = self.inbox.attach(self.answers.append)

    def open(self, key: int, tokens: Sequence[int] = (1, 2, 3), budget: Budget = BUDGET) -> None:
        self.inbox.open(self.stream, Opened(key, tokens, GREEDY, budget, frozenset()))

    def commit(self, key: int, from_len: int, tokens: Sequence[int], budget: Budget = BUDGET) -> None:
        self.inbox.commit(self.stream, Committed(key, from_len, tokens, budget))

    def take(self, max_jobs: int = 8) -> Work:
        work = self.inbox.take(max_jobs, timeout_s=0.0, with_ahead=True)
        assert work is not None
        return work

    def send(self, key: int) -> SentDraft:
        """Open a session, draft a tree for it, and take the work that is then to be done ahead."""
        self.open(key)
        [job] = self.take().jobs
        self.finish(job)
        [sent] = self.take().ahead
        return sent

    def finish(self, job: DraftJob) -> None:
        tree = TokenTree.from_paths(job.root_token_id, [(4, 5)])
        self.inbox.finish(job, tree, proposals=((0, chain_proposal([(4, 5)], 0.5)),))


def test_a_sent_draft_is_looked_ahead_of_until_there_is_no_more() -> None:
    rig = Rig()
    sent = rig.send(7)
    assert (sent.job.base_len, sent.tree.paths()) == (3, {(), (4,), (4, 5)})
    assert rig.take().ahead == ()
    rig.inbox.look_ahead_again(sent)
    assert rig.take().ahead == (sent,)


def test_nothing_is_looked_ahead_of_while_somebody_waits() -> None:
    rig = Rig()
    sent = rig.send(7)
    rig.inbox.look_ahead_again(sent)
    rig.open(8)
    work = rig.take()
    assert [job.session.session_key for job in work.jobs] == [8]
    assert work.ahead == ()
    assert rig.take().ahead == (sent,)


def test_who_does_not_ask_gets_no_work_ahead() -> None:
    rig = Rig()
    sent = rig.send(7)
    rig.inbox.look_ahead_again(sent)
    work = rig.inbox.take(8, timeout_s=0.0)
    assert work is not None
    assert work.ahead == ()


@pytest.mark.parametrize("event", ["commit", "close", "open", "detach", "lost place"])
def test_work_ahead_ends_with_its_base(event: str) -> None:
    rig = Rig()
    sent = rig.send(7)
    rig.inbox.look_ahead_again(sent)
    match event:
        case "commit":
            rig.commit(7, 3, [4], ZERO_BUDGET)
        case "close":
            rig.inbox.close_session(rig.stream, 7)
        case "open":
            rig.open(7, budget=ZERO_BUDGET)
        case "detach":
            rig.inbox.detach(rig.stream)
        case "lost place":
            rig.commit(7, 30, [4])
    if event != "lost place":
        rig.inbox.look_ahead_again(sent)  # from the engine, which has not heard of it yet
    assert rig.take().ahead == ()


def test_nothing_is_foreseen_where_children_are_drawn() -> None:
    rig = Rig()
    sampling = SamplingParams(temperature=1.0, seed=1)
    rig.inbox.open(rig.stream, replace(Opened(7, [1, 2], sampling, BUDGET, frozenset()), rule=Rule.MSS))
    [job] = rig.take().jobs
    rig.finish(job)
    assert rig.take().ahead == ()


def test_verifiers_are_looked_ahead_for_in_turn() -> None:
    rig = Rig()
    other = rig.inbox.attach(rig.answers.append)
    for key in range(4):
        rig.open(key)
    rig.inbox.open(other, Opened(0, [1], GREEDY, BUDGET, frozenset()))
    for job in rig.take().jobs:
        rig.finish(job)
    streams = [sent.job.session.stream_id for sent in rig.take(max_jobs=2).ahead]
    assert sorted(streams) == sorted([rig.stream, other])


def test_a_session_nobody_drafts_for_is_read_when_enough_is_new() -> None:
    rig = Rig()
    rig.open(7, LONG, ZERO_BUDGET)
    [job] = rig.take().jobs
    assert job.is_catching_up
    rig.inbox.finish(job, None)
    rig.commit(7, len(LONG), [6] * (CATCH_UP_TOKENS - 1), ZERO_BUDGET)
    assert rig.take().jobs == ()
    rig.commit(7, 2 * len(LONG) - 1, [6], ZERO_BUDGET)
    [job] = rig.take().jobs
    assert (job.is_catching_up, job.base_len) == (True, 2 * CATCH_UP_TOKENS)
    assert rig.answers == []


def test_reading_gives_way_to_drafts_and_is_not_done_twice() -> None:
    rig = Rig()
    rig.open(7, LONG, ZERO_BUDGET)
    rig.open(8)
    assert [job.session.session_key for job in rig.take().jobs] == [8]
    rig.commit(7, len(LONG), [6])  # now a draft is wanted: it reads by itself
    [job] = rig.take().jobs
    assert not job.is_catching_up
    assert rig.take().jobs == ()


def test_a_commit_hands_the_engine_what_became_of_the_draft() -> None:
    rig = Rig()
    sent = rig.send(7)
    rig.commit(7, 3, [4, 9])
    [verified] = rig.take().verified
    assert verified.draft is sent
    assert verified.token_ids == (4, 9)
    rig.commit(7, 5, [4])  # no draft was sent for this base
    assert rig.take().verified == ()


def test_what_was_not_learned_yet_is_bounded() -> None:
    rig = Rig()
    length = 3
    rig.open(1)
    for _ in range(MAX_VERIFIED // 300 + 2):
        for key in range(2, 300):
            rig.open(key)
    jobs = rig.take(300).jobs
    for job in jobs:
        rig.finish(job)
    for _ in range(MAX_VERIFIED // len(jobs) + 2):
        for job in jobs:
            rig.commit(job.session.session_key, length, [4])
        length += 1
        with rig.inbox._changed:
            assert len(rig.inbox._verified) <= MAX_VERIFIED


def test_a_busy_verifier_leaves_a_quiet_one_its_share() -> None:
    rig = Rig()
    quiet = rig.inbox.attach(rig.answers.append)
    for key in range(100):
        rig.open(key)
    rig.inbox.open(quiet, Opened(0, [1], GREEDY, BUDGET, frozenset()))
    served: list[int] = []
    lengths = dict.fromkeys(range(100), 3)
    quiet_len = 1
    for _ in range(50):
        [job] = rig.take(max_jobs=1).jobs
        rig.finish(job)
        served.append(job.session.stream_id)
        key = job.session.session_key
        if job.session.stream_id == quiet:  # each asks again as soon as it is served
            rig.inbox.commit(quiet, Committed(0, quiet_len, [4], BUDGET))
            quiet_len += 1
        else:
            rig.commit(key, lengths[key], [4])
            lengths[key] += 1
    assert served.count(quiet) == 25
