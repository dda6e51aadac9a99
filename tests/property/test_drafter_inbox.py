"""Any order of messages and rounds: answers are for the newest base, nothing is kept for sessions that ended."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.tree import TokenTree
from specgrove_drafter.answers import Answer, Decline, Draft
from specgrove_drafter.inbox import Inbox
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef
from specgrove_drafter.mirror import Committed, Opened
from specgrove_drafter.trees.sent_draft import SentDraft
from support.drafter_fakes import GREEDY

KEYS = st.integers(0, 3)
TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=4)
BUDGETS = st.sampled_from([Budget(4, 2), Budget(0, 0)])
MAX_SESSIONS = 3


class InboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox(max_sessions=MAX_SESSIONS, max_mirror_tokens=40)
        self.answers: list[Answer] = []
        self.streams = [self.inbox.attach(self.answers.append) for _ in range(2)]
        self.truth: dict[tuple[int, int], list[int]] = {}
        self.in_engine: list[DraftJob] = []
        self.engine_knows: set[SessionRef] = set()
        self.ahead: list[SentDraft] = []

    @rule(stream=st.integers(0, 1), key=KEYS, tokens=TOKENS, budget=BUDGETS)
    def open(self, stream: int, key: int, tokens: list[int], budget: Budget) -> None:
        decline = self.inbox.open(self.streams[stream], Opened(key, tokens, GREEDY, budget, frozenset()))
        if decline is None:
            self.truth[stream, key] = list(tokens)
        else:
            assert (stream, key) not in self.truth

    @rule(stream=st.integers(0, 1), key=KEYS, tokens=TOKENS, skew=st.integers(-1, 1), budget=BUDGETS)
    def commit(self, stream: int, key: int, tokens: list[int], skew: int, budget: Budget) -> None:
        known = self.truth.get((stream, key))
        from_len = max(0, len(known or ()) + skew)
        decline, _ = self.inbox.commit(self.streams[stream], Committed(key, from_len, tokens, budget))
        fits = known is not None and from_len == len(known)
        if fits and len(known or ()) + len(tokens) > 40:
            assert decline is not None
            del self.truth[stream, key]
        elif fits:
            assert decline is None
            self.truth[stream, key] += tokens
        else:
            assert decline is not None

    @rule(stream=st.integers(0, 1), key=KEYS)
    def close(self, stream: int, key: int) -> None:
        self.inbox.close_session(self.streams[stream], key)
        self.truth.pop((stream, key), None)

    @rule(stream=st.integers(0, 1))
    def reconnect(self, stream: int) -> None:
        self.inbox.detach(self.streams[stream])
        self.streams[stream] = self.inbox.attach(self.answers.append)
        self.truth = {name: tokens for name, tokens in self.truth.items() if name[0] != stream}

    @rule(max_jobs=st.integers(1, 4), with_ahead=st.booleans())
    def take(self, max_jobs: int, with_ahead: bool) -> None:
        work = self.inbox.take(max_jobs, timeout_s=0.0, with_ahead=with_ahead)
        assert work is not None
        assert not (work.jobs and work.ahead)
        assert with_ahead or not work.ahead
        for sent in work.ahead:  # only ever under the present base
            assert self.present_base(sent.job) == list(sent.job.token_ids[: sent.job.base_len])
        self.ahead = list(work.ahead)
        self.engine_knows -= set(work.released)
        self.engine_knows |= {job.session for job in work.jobs}
        self.in_engine = list(work.jobs)
        assert len(work.jobs) <= max_jobs

    def present_base(self, job: DraftJob) -> list[int] | None:
        if job.session.stream_id not in self.streams:
            return None
        return self.truth.get((self.streams.index(job.session.stream_id), job.session.session_key))

    @rule()
    def look_ahead_again(self) -> None:
        for sent in self.ahead:  # their bases may be gone by now
            self.inbox.look_ahead_again(sent)
        self.ahead = []

    @rule(is_behind=st.booleans(), has_tree=st.booleans())
    def finish(self, is_behind: bool, has_tree: bool) -> None:
        jobs, self.in_engine = self.in_engine, []
        for job in jobs:
            before = len(self.answers)
            tree = TokenTree.from_paths(job.root_token_id, [[1, 2]] if has_tree else [])
            answer = self.inbox.finish(job, tree, is_behind=is_behind)
            assert self.answers[before:] == ([] if answer is None else [answer])
            match answer:
                case Draft() | Decline():
                    stream = self.streams.index(job.session.stream_id)
                    truth = self.truth[stream, job.session.session_key]
                    assert answer.base_len == len(truth)
                    if isinstance(answer, Draft):
                        assert answer.base_hash == extend_hash(EMPTY_HASH, truth)
                        assert answer.tree.token_ids[0] == truth[-1]

    @invariant()
    def mirrors_are_bounded_and_follow_the_truth(self) -> None:
        assert self.inbox.num_mirrors() == len(self.truth) <= 2 * MAX_SESSIONS

    def teardown(self) -> None:
        for stream in self.streams:
            self.inbox.detach(stream)
        work = self.inbox.take(10, timeout_s=0.0)
        assert work is not None
        assert self.engine_knows <= set(work.released)


TestInbox = InboxMachine.TestCase
TestInbox.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
