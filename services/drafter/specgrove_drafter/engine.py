"""The engine: the one thread that owns the SSMs. It takes what is wanted, drafts it together, hands it back."""

from __future__ import annotations

import logging
import threading
import time

from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.inbox import Decline, Draft, Inbox, Work
from specgrove_drafter.metrics import DrafterMetrics

_log = logging.getLogger(__name__)


class DraftEngine:
    """Runs rounds of `take, draft, finish` until the inbox is closed; `max_batch` bounds the sessions of a round."""

    def __init__(self, inbox: Inbox, ensemble: Ensemble, metrics: DrafterMetrics, *, max_batch: int) -> None:
        self._inbox = inbox
        self._ensemble = ensemble
        self._metrics = metrics
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
        while (work := self._inbox.take(self._max_batch)) is not None:
            self._round(work)

    def _round(self, work: Work) -> None:
        for session in work.released:
            self._ensemble.release(session)
        if not work.jobs:
            return
        started_s = time.perf_counter()
        try:
            drafts = self._ensemble.draft(work.jobs)
        except Exception:
            # Nothing is lost but these drafts: members start afresh, and the verifiers are told not to wait.
            _log.exception("a round of drafts failed")
            for job in work.jobs:
                self._ensemble.release(job.session)
                self._inbox.finish(job, None)
            return
        self._metrics.observe_round(len(work.jobs), time.perf_counter() - started_s)
        for job, draft in zip(work.jobs, drafts, strict=True):
            answer = self._inbox.finish(job, draft.tree, is_behind=draft.is_behind)
            match answer:
                case Draft():
                    self._metrics.draft_sent(answer.tree, answer.draft_s)
                case Decline():
                    self._metrics.declined(answer.reason)
                case None if not job.is_catching_up and not draft.is_behind:
                    self._metrics.draft_was_stale()
