"""Whether the engine sleeps until drafts come, runs a step without them, or one of those sessions whose drafts are in.

together   draft A B ──▶ verify A B ──▶ draft A B ──▶ ...     a step takes all; who misses the deadline goes plainly
in turns   draft A   ──▶ verify A   ──▶ verify B  ──▶ ...     half of the sessions at most; those that still wait
                         draft B        draft A               are held back
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from specgrove_verifier.account import Pacing
from specgrove_verifier.budget import turn_size
from specgrove_verifier.drafter_pool import DrafterPool
from specgrove_verifier.drafting import Drafting
from specgrove_verifier.generation import Generation
from specgrove_verifier.inbox import EngineInbox
from specgrove_verifier.metrics import EngineMetrics
from specgrove_verifier.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class DraftWait:
    """How long a session that could run plainly waits for its draft after a commit."""

    max_wait_s: float
    is_automatic: bool  # follow the measured latency, at most `max_wait_s`

    def limit_s(self, latency_s: float | None) -> float:
        if not self.is_automatic or latency_s is None:
            return self.max_wait_s
        return min(self.max_wait_s, 2 * latency_s + 0.005)


class DraftWaiting:
    """Sleeps on the engine's thread while it is worth it. Owns no state of its own."""

    def __init__(
        self,
        limits: DraftWait,
        scheduler: Scheduler,
        pool: DrafterPool,
        drafting: Drafting,
        inbox: EngineInbox,
        metrics: EngineMetrics,
    ) -> None:
        self._limits = limits
        self._scheduler = scheduler
        self._pool = pool
        self._drafting = drafting
        self._inbox = inbox
        self._metrics = metrics

    def next_turn(self, pacing: Pacing) -> frozenset[int] | None:
        """The keys of the sessions that the coming step leaves out; None after a sleep: the inbox may have news."""
        now = time.monotonic()
        running = self._scheduler.running
        deadlines = {generation.key: self._deadline_s(generation, now) for generation in running}
        awaiting = {key: deadline for key, deadline in deadlines.items() if deadline is not None}
        if not awaiting and pacing is Pacing.TOGETHER:
            return frozenset()
        drafted = [one for one in running if one.mailbox.has_draft and one.key not in awaiting]
        turn = turn_size(len(drafted) + len(awaiting))
        if pacing is Pacing.IN_TURNS and (len(drafted) >= turn or len(drafted) + len(awaiting) < len(running)):
            later = sorted(drafted, key=lambda generation: generation.committed_s)[turn:]  # who ran last
            return frozenset(awaiting) | {generation.key for generation in later}
        if not awaiting or self._scheduler.is_step_full():
            return frozenset()
        self._inbox.wait(min(awaiting.values()) - now)
        return None

    def _deadline_s(self, generation: Generation, now: float) -> float | None:
        """Until when `generation` waits for its drafts; None when it does not. Notes who has missed it."""
        if not generation.is_decoding:
            return None
        missing = self._pool.worth_waiting_for(generation.mailbox.missing(), now)
        if not missing:
            return None
        deadline = generation.committed_s + self._limits.limit_s(self._pool.latency_s(missing))
        if deadline > now:
            return deadline
        # A first draft waits for the prompt to be read: once for each session nobody is blamed for that.
        self._pool.note_silence(missing, now, is_excused=generation.is_first_draft)
        generation.is_first_draft = False
        self._metrics.record_fallback("deadline")
        self._drafting.assign(generation)
        self._pool.flush()
        return None
