"""Between the streams (event loop) and the engine (its thread): all mirrors, and which of them want a draft.

    stream 1   Open/Commit/Close ──▶ mirrors ── ready: s7, s2      ┐
    stream 2   Open/Commit/Close ──▶ mirrors ── ready: s1          ├─ take(): round-robin over streams ──▶ engine
    stream 3   ...                                                 ┘  finish(): is it still the present base? ──▶ stream

While nobody waits, `take` hands out what is worth doing in idle time: contexts to be read, then sent drafts to be
looked ahead of. Both end with their base: what a commit, a close or the end of a stream replaces is never taken again.

There is no queue of commits to overflow: a commit is taken into its mirror at once, and a mirror is ready or it is
not. A draft is only ever made for a session's newest base; the older one it replaces is gone (newest wins). Bounds:
mirrors by `max_sessions` for each stream, tokens of a mirror by `max_mirror_tokens`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specgrove.draft import ChildLaw
from specgrove.tree import TokenTree
from specgrove_drafter.answers import Answer, Decline, DeclineReason, Draft
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.mirror import AcceptedNode, Committed, Mirror, Opened
from specgrove_drafter.trees.proposal import Proposal
from specgrove_drafter.trees.sent_draft import SentDraft, VerifiedDraft

# A session that nobody drafts for is read on in idle time once this many tokens are new: a forward for 32 tokens, not
# for each, or switched off speculation would cost more than none; and a probe starts at most so far behind.
CATCH_UP_TOKENS = 32
MAX_VERIFIED = 1024  # drafts whose outcome the engine has not taken in yet; the oldest go first


@dataclass(frozen=True, slots=True)
class Work:
    """What the engine does next: forget `released`, draft `jobs` together, then learn from `verified`.

    `ahead` is there only without jobs: sent drafts to look ahead of.
    """

    jobs: tuple[DraftJob, ...]
    released: tuple[SessionRef, ...]
    verified: tuple[VerifiedDraft, ...] = ()
    ahead: tuple[SentDraft, ...] = ()


@dataclass(slots=True, eq=False)
class _Stream:
    deliver: Callable[[Answer], None]
    mirrors: dict[int, Mirror] = field(default_factory=dict)  # by session key
    ready: OrderedDict[int, None] = field(default_factory=OrderedDict)  # oldest first
    behind: OrderedDict[int, None] = field(default_factory=OrderedDict)  # members have unread tokens; nobody waits
    ahead: OrderedDict[int, None] = field(default_factory=OrderedDict)  # sent, and there is more to foresee

    def forget(self, session_key: int) -> None:
        """Take a session out of every queue."""
        for queue in (self.ready, self.behind, self.ahead):
            queue.pop(session_key, None)


class Inbox:
    """The mirrors of all streams, safe to use from the event loop and the engine's thread."""

    def __init__(
        self, *, max_sessions: int, max_mirror_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_sessions = max_sessions
        self._max_mirror_tokens = max_mirror_tokens
        self._clock = clock
        self._changed = threading.Condition()
        self._streams: OrderedDict[int, _Stream] = OrderedDict()  # the next to be served first
        self._next_stream_id = 0
        self._released: dict[SessionRef, None] = {}
        self._verified: deque[VerifiedDraft] = deque(maxlen=MAX_VERIFIED)
        self._is_closed = False

    # --- the streams' side ------------------------------------------------------------------------------------------

    def attach(self, deliver: Callable[[Answer], None]) -> int:
        """Register a stream; `deliver` is called from the engine's thread with each of its answers. Returns its id."""
        with self._changed:
            self._next_stream_id += 1
            self._streams[self._next_stream_id] = _Stream(deliver)
            return self._next_stream_id

    def detach(self, stream_id: int) -> None:
        """The stream ended: all its mirrors are released."""
        with self._changed:
            stream = self._streams.pop(stream_id, None)
            if stream is not None:
                for mirror in stream.mirrors.values():
                    self._release(mirror)
                self._changed.notify()

    def open(self, stream_id: int, opened: Opened) -> Decline | None:
        """Start a mirror (or start it again). A refusal is returned for the verifier."""
        refusal = Decline(opened.session_key, len(opened.token_ids), DeclineReason.NO_CAPACITY)
        if len(opened.token_ids) > self._max_mirror_tokens:
            self.close_session(stream_id, opened.session_key)
            return refusal
        # Made before the lock is taken: hashing a long context takes milliseconds.
        mirror = Mirror.open(SessionRef(stream_id, opened.session_key), opened, self._clock())
        with self._changed:
            stream = self._streams[stream_id]
            known = stream.mirrors.get(opened.session_key)
            if known is None and len(stream.mirrors) >= self._max_sessions:
                return refusal
            # The engine keeps what it has cached for this session and reuses the common prefix.
            mirror.is_known_to_engine = known is not None and known.is_known_to_engine
            stream.mirrors[opened.session_key] = mirror
            stream.ahead.pop(opened.session_key, None)
            self._want(stream, mirror)
            return None

    def commit(self, stream_id: int, committed: Committed) -> tuple[Decline | None, list[AcceptedNode]]:
        """Take new tokens into a mirror; returns a refusal for the verifier, and what became of the last tree."""
        with self._changed:
            stream = self._streams[stream_id]
            mirror = stream.mirrors.get(committed.session_key)
            new_len = committed.from_len + len(committed.token_ids)
            if mirror is None or mirror.base_len != committed.from_len:
                is_full = mirror is None and len(stream.mirrors) >= self._max_sessions
                stream.forget(committed.session_key)
                reason = DeclineReason.NO_CAPACITY if is_full else DeclineReason.LOST_PLACE
                return Decline(committed.session_key, new_len, reason), []
            if new_len > self._max_mirror_tokens:
                self._drop(stream, committed.session_key)
                return Decline(committed.session_key, new_len, DeclineReason.NO_CAPACITY), []
            stream.ahead.pop(committed.session_key, None)
            if mirror.sent is not None and committed.token_ids:
                self._verified.append(VerifiedDraft(mirror.sent, tuple(committed.token_ids)))
            accepted = mirror.commit(committed, self._clock())
            self._want(stream, mirror)
            return None, accepted

    def close_session(self, stream_id: int, session_key: int) -> None:
        """The session is over; unknown ones are fine."""
        with self._changed:
            self._drop(self._streams[stream_id], session_key)

    def num_mirrors(self) -> int:
        with self._changed:
            return sum(len(stream.mirrors) for stream in self._streams.values())

    # --- the engine's side ------------------------------------------------------------------------------------------

    def take(self, max_jobs: int, timeout_s: float | None = None, *, with_ahead: bool = False) -> Work | None:
        """Wait for work: at most `max_jobs` newest bases, one from each stream in turn. None once closed.

        After `timeout_s` without any, an empty `Work`. When nobody wants a draft, sessions whose members are behind
        come with a zero budget, so that a long context is read while there is time; and when there are none, sent
        drafts to look ahead of, if `with_ahead`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_work(with_ahead), timeout_s)
            if self._is_closed:
                return None
            released = tuple(self._released)
            self._released.clear()
            jobs = [mirror.job() for mirror in self._pick(max_jobs, lambda stream: stream.ready)]
            if not jobs:
                jobs = [mirror.job().without_budget() for mirror in self._pick(max_jobs, lambda stream: stream.behind)]
            verified = tuple(self._verified)
            self._verified.clear()
            ahead = self._pick(max_jobs, lambda stream: stream.ahead) if with_ahead and not jobs else ()
            return Work(tuple(jobs), released, verified, tuple(mirror.sent for mirror in ahead if mirror.sent))

    def finish(
        self,
        job: DraftJob,
        tree: TokenTree | None,
        *,
        is_behind: bool = False,
        laws: tuple[ChildLaw, ...] = (),
        proposals: tuple[tuple[int, Proposal], ...] = (),
    ) -> Answer | None:
        """Deliver the outcome of a draft to its stream and return it; None when nobody waits for it any more.

        Without a tree (or with a bare root) the answer is a decline, unless `is_behind`: then the session stays ready
        and is tried again. `is_behind` with a tree asks for idle time to catch up.
        """
        with self._changed:
            stream = self._streams.get(job.session.stream_id)
            mirror = None if stream is None else stream.mirrors.get(job.session.session_key)
            if stream is None or mirror is None or mirror.token_ids is not job.token_ids:
                return None
            key = mirror.session.session_key
            if mirror.base_len != job.base_len:
                return None
            has_tree = tree is not None and tree.num_draft_nodes > 0
            if job.is_catching_up or (is_behind and has_tree):
                if is_behind and key not in stream.ready:
                    stream.behind[key] = None
                if job.is_catching_up:
                    return None
            elif is_behind:
                stream.ready[key] = None
                return None
            answer: Answer
            if tree is not None and has_tree:
                mirror.sent = SentDraft(job, tree, proposals)
                if job.estimate_kind is not None and not is_behind:
                    stream.ahead[key] = None
                answer = Draft(key, job.base_len, job.base_hash, tree, self._clock() - job.arrived_s, laws)
            else:
                answer = Decline(key, job.base_len, DeclineReason.NOTHING_TO_PROPOSE)
            deliver = stream.deliver
        deliver(answer)
        return answer

    def look_ahead_again(self, sent: SentDraft) -> None:
        """There is more to foresee for `sent`; forgotten when its base is gone."""
        with self._changed:
            stream = self._streams.get(sent.job.session.stream_id)
            key = sent.job.session.session_key
            mirror = None if stream is None else stream.mirrors.get(key)
            if stream is not None and mirror is not None and mirror.sent is sent:
                stream.ahead[key] = None

    def close(self) -> None:
        """No more work: the engine's `take` returns None."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # --- under the lock ---------------------------------------------------------------------------------------------

    def _has_work(self, with_ahead: bool) -> bool:
        return (
            self._is_closed
            or bool(self._released)
            or any(stream.ready or stream.behind or (with_ahead and stream.ahead) for stream in self._streams.values())
        )

    def _want(self, stream: _Stream, mirror: Mirror) -> None:
        key = mirror.session.session_key
        if mirror.budget.is_zero:
            stream.ready.pop(key, None)
            if mirror.base_len - mirror.read_len >= CATCH_UP_TOKENS:
                stream.behind[key] = None
                self._changed.notify()
        else:
            # A session that waits already keeps its place: who commits often must not fall back again and again.
            stream.ready.setdefault(key, None)
            self._changed.notify()

    def _pick(self, max_jobs: int, queue_of: Callable[[_Stream], OrderedDict[int, None]]) -> Sequence[Mirror]:
        """Take up to `max_jobs` mirrors out of the queues, the oldest of each stream in turn."""
        picked: list[Mirror] = []
        while len(picked) < max_jobs:
            stream_id = next((i for i, stream in self._streams.items() if queue_of(stream)), None)
            if stream_id is None:
                break
            stream = self._streams[stream_id]
            self._streams.move_to_end(stream_id)
            key, _ = queue_of(stream).popitem(last=False)
            stream.behind.pop(key, None)
            mirror = stream.mirrors[key]
            mirror.is_known_to_engine = True
            mirror.read_len = mirror.base_len
            picked.append(mirror)
        return picked

    def _drop(self, stream: _Stream, session_key: int) -> None:
        mirror = stream.mirrors.pop(session_key, None)
        stream.forget(session_key)
        if mirror is not None:
            self._release(mirror)

    def _release(self, mirror: Mirror) -> None:
        # Sessions the engine never saw need no word, so this stays within what it holds.
        if mirror.is_known_to_engine:
            self._released[mirror.session] = None
            self._changed.notify()
