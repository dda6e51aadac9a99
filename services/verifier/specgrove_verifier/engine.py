"""The engine: one thread that owns the device, and three verbs a step.

    schedule   which rows of which generations (scheduler.py), with the trees that have come
    run        one packed forward over all of them (specgrove.runtime.forward)
    commit     verify each tree, obey the stop conditions, keep the accepted path, tell listeners and drafters

Generations join and leave between steps. Everything that reaches the engine from outside comes through its inbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specgrove.draft import Draft
from specgrove.errors import SpecgroveError
from specgrove.outcome import FinishReason
from specgrove.runtime.forward import PackedForward
from specgrove.runtime.kv_cache import KVCache
from specgrove.sampling.target_choice import choose_tokens
from specgrove.sampling.verification import verify_tree
from specgrove.tree import ROOT
from specgrove_verifier.budget import Budget
from specgrove_verifier.drafter_pool import Drafter, DrafterPool
from specgrove_verifier.generation import Generation, StepOutput
from specgrove_verifier.inbox import EngineInbox, Refusal
from specgrove_verifier.mailbox import NO_DRAFT, DraftBudget, DraftOutcome
from specgrove_verifier.metrics import EngineMetrics
from specgrove_verifier.scheduler import Scheduled, Scheduler

_log = logging.getLogger(__name__)
_MAX_FAILED_STEPS = 3


@dataclass(frozen=True, slots=True)
class DraftWait:
    """How long a session that could run plainly waits for its draft after a commit."""

    max_wait_s: float
    is_automatic: bool  # follow the measured latency, at most `max_wait_s`

    def limit_s(self, latency_s: float | None) -> float:
        if not self.is_automatic or latency_s is None:
            return self.max_wait_s
        return min(self.max_wait_s, 2 * latency_s + 0.005)


class Engine:
    """Runs generations. Public methods may be called from any thread and return at once."""

    def __init__(
        self,
        forward: PackedForward,
        cache: KVCache,
        scheduler: Scheduler,
        pool: DrafterPool,
        budget: Budget,
        draft_wait: DraftWait,
        metrics: EngineMetrics,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._forward = forward
        self._cache = cache
        self._scheduler = scheduler
        self._pool = pool
        self._budget = budget
        self._draft_wait = draft_wait
        self._metrics = metrics
        self._on_broken = on_broken
        self._inbox = EngineInbox()
        self._generations: dict[int, Generation] = {}
        self._granted = budget.limits
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    # -- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread after the step it is in; running generations get an error."""
        self._inbox.command(self._begin_stopping)
        self._thread.join(timeout_s)

    def submit(self, generation: Generation) -> None:
        self._inbox.command(lambda: self._accept(generation))

    def cancel(self, generation: Generation, error: SpecgroveError | None = None) -> None:
        """Release everything of `generation` before the next step; its listener hears `error` if there is one."""
        self._inbox.command(lambda: self._drop(generation, error))

    def attach(self, drafter: Drafter) -> None:
        self._inbox.command(lambda: self._attach(drafter))

    def detach(self, number: int) -> None:
        self._inbox.command(lambda: self._detach(number))

    def offer_draft(self, number: int, draft: Draft) -> None:
        self._inbox.answer(number, draft)

    def decline_draft(self, number: int, session_key: int, base_len: int, *, lost_place: bool, no_room: bool) -> None:
        self._inbox.answer(number, Refusal(session_key, base_len, lost_place, no_room))

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def num_drafters(self) -> int:
        return len(self._pool)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        failed = 0
        while not self._stopping.is_set():
            try:
                self._read_inbox()
                if self._stopping.is_set():
                    break
                if not self._generations:
                    self._inbox.wait(None)
                    continue
                if self._wait_for_drafts():
                    continue
                self.step()
                failed = 0
            except Exception as error:
                failed += 1
                _log.exception("step failed")
                self._fail_all(error)
                if failed >= _MAX_FAILED_STEPS:
                    _log.error("%d steps failed in a row; giving up", failed)
                    self._on_broken()
                    return
        self._fail_all(SpecgroveError("the verifier is shutting down"))

    def step(self) -> None:
        """One step: schedule, run, commit."""
        started = time.monotonic()
        batch = self._scheduler.compose()
        if not batch:
            return
        logits = self._forward.run([scheduled.rows() for scheduled in batch])
        ran = time.monotonic()
        num_decoding = sum(scheduled.reaches_end for scheduled in batch)
        if num_decoding:
            self._granted = self._budget.grant(num_decoding, self._pool.usual_latency_s())
        first = 0
        for scheduled in batch:
            last = first + scheduled.num_logit_rows
            self._commit(scheduled, logits[first:last])
            first = last
        self._pool.flush()
        num_rows = sum(scheduled.num_rows for scheduled in batch)
        if all(scheduled.num_chain == 1 for scheduled in batch):
            self._budget.observe_step(num_rows, ran - started)
        self._metrics.record_step(num_rows, ran - started)
        self._report_load()

    def _commit(self, scheduled: Scheduled, logits: torch.Tensor) -> None:
        generation, seq, tree = scheduled.generation, scheduled.seq, scheduled.tree
        if not scheduled.reaches_end:
            self._cache.commit(seq, range(scheduled.num_chain))
            return
        root_row = scheduled.num_chain - 1
        length = len(generation.tokens)
        depths = tree.depths if tree is not None else (0,)
        choices = choose_tokens(
            logits,
            generation.request.sampling,
            [length + depth for depth in depths],
            generation.noise,
            suppressed_ids=sorted(generation.checker.stop_token_ids),
            suppressed_below=generation.suppressed_below,
        )
        accepted: tuple[int, ...] = ()
        committed: tuple[int, ...] = (choices[ROOT],)
        if tree is not None:
            verdict = verify_tree(tree, choices)
            accepted, committed = verdict.accepted_nodes, verdict.committed_token_ids(tree)
        kept, finish_reason = _obey_stop(generation, committed)
        num_accepted = min(len(accepted), len(kept))
        self._record(generation, scheduled, kept, num_accepted)
        generation.append(kept)
        if finish_reason is None:
            kept_rows = [*range(scheduled.num_chain), *(root_row + node for node in accepted)]
            self._cache.commit(seq, kept_rows)
            self._expect_next(generation, length, kept)
            generation.listener(StepOutput(kept))
        else:
            self._finish(generation, kept, finish_reason)

    def _record(self, generation: Generation, scheduled: Scheduled, kept: Sequence[int], num_accepted: int) -> None:
        now = time.monotonic()
        if generation.first_token_s is None:
            generation.first_token_s = now
            generation.stats.prefill_s = now - generation.arrived_s
        generation.stats.decode_s = now - generation.first_token_s
        generation.previous_base = (len(generation.tokens), generation.committed_s)
        generation.committed_s = now
        tree = scheduled.tree
        num_nodes = tree.num_draft_nodes if tree is not None else 0
        generation.stats.record_step(
            num_draft_nodes=num_nodes,
            tree_depth=tree.max_depth if tree is not None else 0,
            num_accepted=num_accepted,
            num_committed=len(kept),
        )
        if tree is not None:
            self._budget.observe_tree(num_nodes, num_accepted)
        self._metrics.record_commit(num_nodes, num_accepted, len(kept))

    def _expect_next(self, generation: Generation, from_len: int, kept: Sequence[int]) -> None:
        """Ask the drafters for the next tree, first of all those that do not mirror the generation yet."""
        budget = self._budget_for(generation)
        known = generation.drafters
        generation.mailbox.expect(generation.base, budget, known)
        if known:
            self._pool.announce_commit(generation, from_len, kept)
        self._assign(generation)

    def _assign(self, generation: Generation) -> None:
        if self._budget.limits.max_nodes == 0:
            return  # speculation is off here: drafters need not hear of it
        self._pool.assign(generation)
        generation.mailbox.ask_also(generation.drafters)

    def _budget_for(self, generation: Generation) -> DraftBudget:
        options = generation.request.speculation
        if not options.is_enabled:
            return NO_DRAFT
        granted = self._granted
        num_left = generation.checker.num_left - 1  # the step adds a token of its own
        nodes = min(granted.max_nodes, options.max_nodes or granted.max_nodes)
        depth = min(granted.max_depth, options.max_depth or granted.max_depth, num_left)
        return DraftBudget(nodes, depth) if nodes > 0 and depth > 0 else NO_DRAFT

    def _finish(self, generation: Generation, kept: tuple[int, ...], reason: FinishReason) -> None:
        self._forget(generation, str(reason))
        self._metrics.record_finish(str(reason))
        generation.listener(StepOutput(kept, reason, generation.checker.stop_string, generation.stats))

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait_for_drafts(self) -> bool:
        """Sleep if every session that could run has a draft coming that is worth it; True when the inbox has news."""
        now = time.monotonic()
        earliest: float | None = None
        for generation in self._scheduler.running:
            if not generation.is_decoding:
                continue
            missing = self._pool.worth_waiting_for(generation.mailbox.missing(), now)
            if not missing:
                continue
            deadline = generation.committed_s + self._draft_wait.limit_s(self._pool.latency_s(missing))
            if deadline <= now:
                # A first draft waits for the prompt to be read: once for each session nobody is blamed for that.
                self._pool.note_silence(missing, now, is_excused=generation.is_first_draft)
                generation.is_first_draft = False
                self._metrics.record_fallback("deadline")
                self._assign(generation)
                self._pool.flush()
                continue
            earliest = deadline if earliest is None else min(earliest, deadline)
        if earliest is None or self._scheduler.is_step_full():
            return False
        self._inbox.wait(earliest - now)
        return True

    # -- news from outside -------------------------------------------------------------------------------------------

    def _read_inbox(self) -> None:
        commands, arrivals = self._inbox.take()
        for run in commands:
            try:
                run()
            except Exception:  # the others must not be lost with it
                _log.exception("a command to the engine failed")
        for arrival in arrivals:
            if isinstance(arrival.answer, Draft):
                self._offer(arrival.drafter, arrival.answer, arrival.arrived_s)
            else:
                self._decline(arrival.drafter, arrival.answer)
        if commands or arrivals:
            self._pool.flush()
        if commands:
            self._report_load()

    def _report_load(self) -> None:
        self._metrics.set_load(num_running=self.num_running, num_waiting=self.num_waiting, kv_usage=self._cache.usage)

    def _accept(self, generation: Generation) -> None:
        self._generations[generation.key] = generation
        self._scheduler.add(generation)

    def _drop(self, generation: Generation, error: SpecgroveError | None) -> None:
        if generation.key not in self._generations:
            return
        self._forget(generation, "cancelled")
        self._metrics.record_finish("cancelled" if error is None else "error")
        if error is not None:
            generation.listener(StepOutput(error=error))

    def _forget(self, generation: Generation, reason: str) -> None:
        self._generations.pop(generation.key, None)
        self._scheduler.remove(generation)
        self._pool.close(generation, reason)

    def _fail_all(self, error: Exception) -> None:
        typed = (
            error if isinstance(error, SpecgroveError) else SpecgroveError("the step failed; see the verifier's log")
        )
        for generation in list(self._generations.values()):
            self._drop(generation, typed)
        self._pool.flush()
        self._report_load()

    def _begin_stopping(self) -> None:
        self._stopping.set()

    def _attach(self, drafter: Drafter) -> None:
        self._pool.attach(drafter)
        self._metrics.set_drafters(len(self._pool))
        for generation in self._scheduler.running:
            if generation.is_decoding:
                self._assign(generation)

    def _detach(self, number: int) -> None:
        self._pool.detach(number, self._generations.values())
        self._metrics.set_drafters(len(self._pool))
        for generation in self._scheduler.running:
            if generation.is_decoding and not generation.drafters:
                self._assign(generation)

    def _offer(self, number: int, draft: Draft, arrived_s: float) -> None:
        generation = self._generations.get(draft.session_key)
        if generation is None:
            self._metrics.record_draft(DraftOutcome.FOREIGN)
            self._pool.note_answer(number, None)
            return
        outcome = generation.mailbox.offer(number, draft)
        latency_s = None
        if outcome is DraftOutcome.ACCEPTED:
            latency_s = max(arrived_s - generation.committed_s, 0.0)
            generation.is_first_draft = False
        elif outcome is DraftOutcome.LATE and draft.base_len == generation.previous_base[0]:
            # Capped: a drafter that was stopped for a minute is not one that takes a minute.
            latency_s = min(arrived_s - generation.previous_base[1], 2 * self._draft_wait.max_wait_s)
        self._pool.note_answer(number, latency_s, is_in_time=(latency_s or 0.0) <= self._draft_wait.max_wait_s)
        self._metrics.record_draft(outcome, latency_s)
        if outcome is DraftOutcome.DIVERGENT:
            self._pool.reopen(generation, number, generation.mailbox.budget)

    def _decline(self, number: int, refusal: Refusal) -> None:
        self._pool.note_answer(number, None)
        generation = self._generations.get(refusal.session_key)
        if generation is None or number not in generation.drafters:
            return
        if refusal.lost_place:
            self._metrics.record_fallback("lost_place")
            self._pool.reopen(generation, number, generation.mailbox.budget)
        elif refusal.no_room:
            self._metrics.record_fallback("no_room")
            self._pool.withdraw(generation, number, "no capacity")
            self._assign(generation)
        else:
            self._metrics.record_fallback("declined")
            generation.mailbox.decline(number, refusal.base_len)


def _obey_stop(generation: Generation, committed: Sequence[int]) -> tuple[tuple[int, ...], FinishReason | None]:
    """The tokens up to and including the one that ends the generation, and why it ends."""
    for count, token_id in enumerate(committed, start=1):
        reason = generation.checker.push(token_id)
        if reason is not None:
            return tuple(committed[:count]), reason
    return tuple(committed), None
