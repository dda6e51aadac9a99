"""Drafting ahead: while a tree is out for verification, run what the draft after its likeliest outcomes will need.

    draft sent ──▶ step ──▶ step ──▶ ...          each at most one forward of each SSM, over all sessions that wait
                                 base arrives ──▶ one of the guesses: a hit, its draft finds its rows and laws ready
                                              └─▶ another: what was run is counted as waste

A guess is never an answer by itself: every tree is drafted for the base it is sent under, out of what is computed. So
there is no stock that could outlive its base, and a new budget, calibration or proposal of another member counts at
once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specgrove_drafter.ahead_governor import AheadGovernor
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.trees.outcomes import OutcomeLimits, Path
from specgrove_drafter.trees.sent_draft import SentDraft

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Lookahead:
    """What was run ahead of one base."""

    base: DraftJob
    guesses: set[Path] = field(default_factory=set)
    num_forwards: float = 0.0  # a forward over several sessions counts in equal parts
    draft_s: float = 0.0  # of those forwards that the next draft need not run

    def is_of(self, job: DraftJob) -> bool:
        return self.base.token_ids is job.token_ids and self.base.base_len == job.base_len

    def foresaw(self, job: DraftJob) -> bool:
        base = self.base
        if base.token_ids is not job.token_ids or job.base_len <= base.base_len:
            return False
        return tuple(job.token_ids[base.base_len : job.base_len]) in self.guesses


class AheadDrafting:
    """Steps of drafting ahead and their account. Used by the engine's thread."""

    def __init__(
        self,
        ensemble: Ensemble,
        governor: AheadGovernor,
        metrics: DrafterMetrics,
        *,
        limits: OutcomeLimits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ensemble = ensemble
        self._governor = governor
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self._lookaheads: dict[SessionRef, _Lookahead] = {}

    @property
    def is_open(self) -> bool:
        return self._governor.is_open

    def step(self, sent: Sequence[SentDraft]) -> list[SentDraft]:
        """Draft one level ahead of `sent`; returns those for which there is more to do."""
        num_before, started_s = self._ensemble.num_forwards, self._clock()
        try:
            steps = self._ensemble.look_ahead(sent, self._limits)
        except Exception:
            # Nothing is lost: the sessions are read anew when their bases come.
            _log.exception("drafting ahead failed")
            for draft in sent:
                self._ensemble.release(draft.job.session)
                self.forget(draft.job.session)
            return []
        num_forwards = self._ensemble.num_forwards - num_before
        elapsed_s = self._clock() - started_s
        if num_forwards:
            self._metrics.num_ahead_forwards.inc(num_forwards)
            self._governor.waste.observe(num_forwards)
        for draft, step in zip(sent, steps, strict=True):
            if num_forwards:
                lookahead = self._lookahead_of(draft.job)
                lookahead.num_forwards += num_forwards / len(sent)
                lookahead.draft_s += elapsed_s if step.guesses else 0.0
                self._metrics.num_ahead_guesses.inc(len(set(step.guesses) - lookahead.guesses))
                lookahead.guesses.update(step.guesses)
        return [draft for draft, step in zip(sent, steps, strict=True) if not step.is_done]

    def base_arrived(self, job: DraftJob) -> None:
        """A draft is wanted for a new base: settle the account of the one before."""
        lookahead = self._lookaheads.get(job.session)
        if lookahead is None or lookahead.is_of(job):
            return
        del self._lookaheads[job.session]
        if lookahead.foresaw(job) and not job.is_catching_up:
            self._metrics.num_ahead_hits.inc()
            self._metrics.ahead_hidden_s.inc(lookahead.draft_s)
        else:
            self._waste(lookahead)

    def draft_sent(self, session: SessionRef) -> None:
        self._governor.draft_sent(session)

    def ran(self, num_forwards: int) -> None:
        """So many forwards were run for drafts that were wanted."""
        self._governor.waste.observe(num_forwards)

    def forget(self, session: SessionRef) -> None:
        """The session ended."""
        self._governor.forget(session)
        lookahead = self._lookaheads.pop(session, None)
        if lookahead is not None:
            self._waste(lookahead)

    def _lookahead_of(self, job: DraftJob) -> _Lookahead:
        known = self._lookaheads.get(job.session)
        if known is not None and not known.is_of(job):
            self.base_arrived(job.without_budget())  # its base went by without a draft being wanted
            known = None
        if known is None:
            known = self._lookaheads[job.session] = _Lookahead(job)
        return known

    def _waste(self, lookahead: _Lookahead) -> None:
        self._metrics.num_ahead_wasted_forwards.inc(lookahead.num_forwards)
        self._governor.waste.observe(0.0, lookahead.num_forwards)
