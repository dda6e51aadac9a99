"""The engine: the one thread that owns the SSMs. It takes what is wanted, drafts it together, hands it back.

What is wanted always comes first: idle work (contexts to be read, drafting ahead) is taken only when there is no job,
one forward at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from specgrove_drafter.ahead import AheadDrafting
from specgrove_drafter.answers import Decline, Draft
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.inbox import Inbox, Work
from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.trees.sent_draft import VerifiedDraft

_log = logging.getLogger(__name__)


class DraftEngine:
    """Runs rounds of `take, draft, finish` until the inbox is closed; `max_batch` bounds the sessions of a round."""

    def __init__(
        self, inbox: Inbox, ensemble: Ensemble, metrics: DrafterMetrics, ahead: AheadDrafting, *, max_batch: int
    ) -> None:
        self._inbox = inbox
        self._ensemble = ensemble
        self._metrics = metrics
        self._ahead = ahead
        self._max_batch = max_batch
        self._thread = threading.Thread(target=self._run, name="draft-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> None:
        """Close the inbox and wait for the round in progress to end."""
        self._inbox.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._inbox.take(self._max_batch, with_ahead=self._ahead.is_open)) is not None:
            self._round(work)

    def _round(self, work: Work) -> None:
        for session in work.released:
            self._ensemble.release(session)
            self._ahead.forget(session)
        if work.jobs:
            self._draft(work.jobs)
        self._learn(work.verified)  # after the drafts: a verifier waits for those
        if work.ahead:
            for sent in self._ahead.step(work.ahead):
                self._inbox.look_ahead_again(sent)

    def _learn(self, verified: Sequence[VerifiedDraft]) -> None:
        try:
            for draft in verified:
                self._ensemble.learn(draft)
        except Exception:
            _log.exception("calibration failed")  # estimates stay as they are; drafting goes on

    def _draft(self, jobs: Sequence[DraftJob]) -> None:
        started_s, num_forwards = time.perf_counter(), self._ensemble.num_forwards
        for job in jobs:
            self._ahead.base_arrived(job)
        try:
            drafts = self._ensemble.draft(jobs)
        except Exception:
            # Nothing is lost but these drafts: members start afresh, and the verifiers are told not to wait.
            _log.exception("a round of drafts failed")
            for job in jobs:
                self._ensemble.release(job.session)
                self._inbox.finish(job, None)
            return
        self._ahead.ran(self._ensemble.num_forwards - num_forwards)
        self._metrics.observe_round(len(jobs), time.perf_counter() - started_s)
        for job, draft in zip(jobs, drafts, strict=True):
            answer = self._inbox.finish(
                job, draft.tree, laws=draft.laws, is_behind=draft.is_behind, proposals=draft.proposals
            )
            match answer:
                case Draft():
                    self._ahead.draft_sent(job.session)
                    self._metrics.draft_sent(answer.tree, answer.draft_s)
                case Decline():
                    self._metrics.declined(answer.reason)
                case None if not job.is_catching_up and not draft.is_behind:
                    self._metrics.draft_was_stale()
