"""The engine: one thread that owns the device, and three verbs a step.

    schedule   which rows of which generations (scheduler.py), with the trees that have come
    run        one packed forward over all of them (specgrove.runtime.forward)
    commit     verify each tree, obey the stop conditions, keep the accepted path, tell listeners and drafters

Generations join and leave between steps. Everything that reaches the engine from outside comes through its inbox.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from specgrove.draft import Draft
from specgrove.errors import Overloaded, SpecgroveError
from specgrove.outcome import FinishReason, TokenLogprobs
from specgrove.runtime.forward import PackedForward
from specgrove.runtime.kv_cache import KVCache
from specgrove.sampling.verification import Verdict
from specgrove.tree import ROOT, TokenTree
from specgrove_verifier.budget import Budget
from specgrove_verifier.drafter_pool import Drafter, DrafterPool
from specgrove_verifier.drafting import Drafting
from specgrove_verifier.features import FeatureSource, TargetOutputs
from specgrove_verifier.generation import Generation, StepOutput
from specgrove_verifier.inbox import EngineInbox, Refusal
from specgrove_verifier.joint_verdicts import reach_verdicts
from specgrove_verifier.logprobs import kept_logprobs, score_prompts, take_prompt_logprobs
from specgrove_verifier.metrics import EngineMetrics
from specgrove_verifier.open_load import RefusalReason
from specgrove_verifier.scheduler import Scheduled, Scheduler
from specgrove_verifier.waiting import DraftWait, DraftWaiting

_log = logging.getLogger(__name__)
_MAX_FAILED_STEPS = 3
_LONGEST_ADVICE_S = 30.0  # nobody is told to stay away for longer


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
        features: FeatureSource,
        metrics: EngineMetrics,
        max_waiting_s: float = math.inf,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._forward = forward
        self._cache = cache
        self._scheduler = scheduler
        self._pool = pool
        self._budget = budget
        self._features = features
        self._metrics = metrics
        self._max_waiting_s = max_waiting_s
        self._on_broken = on_broken
        self._inbox = EngineInbox()
        self._generations: dict[int, Generation] = {}
        self._drafting = Drafting(pool, budget, self._generations, metrics, max_wait_s=draft_wait.max_wait_s)
        self._waiting = DraftWaiting(draft_wait, scheduler, pool, self._drafting, self._inbox, metrics)
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
        drafter.feature_layers = self._features.granted(drafter.drafter_id, drafter.feature_layers)
        self._inbox.command(lambda: self._drafting.attach(drafter))

    def detach(self, number: int) -> None:
        self._inbox.command(lambda: self._drafting.detach(number))

    def offer_draft(self, number: int, draft: Draft) -> None:
        self._inbox.answer(number, draft)

    def decline_draft(self, number: int, session_key: int, base_len: int, *, lost_place: bool, no_room: bool) -> None:
        self._inbox.answer(number, Refusal(session_key, base_len, lost_place, no_room))

    def note_refusal(self, reason: RefusalReason) -> None:
        """Count a generation that was refused for the load before it came here."""
        self._metrics.record_rejection(reason)

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
                self._refuse_overdue()
                if not self._generations:
                    self._inbox.wait(None)
                    continue
                left_out = self._waiting.next_turn(self._budget.pacing)
                if left_out is None:
                    continue
                self.step(left_out)
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

    def step(self, left_out: Collection[int] = ()) -> None:
        """One step: schedule, run, commit. The sessions `left_out` (keys) stay as they are."""
        started = time.monotonic()
        batch = self._scheduler.compose(left_out)
        if not batch:
            return
        decoding = [scheduled.generation for scheduled in batch if scheduled.reaches_end]
        if decoding:
            num_decoding = len(decoding) + len(left_out)  # who is left out waits for drafts
            num_plain = sum(not generation.request.speculation.is_enabled for generation in decoding)
            self._drafting.grant(num_decoding, self._scheduler.max_draft_nodes(num_decoding), num_plain)
        wanted_layers = self._drafting.feature_layers(decoding)
        outputs = self._features.run(self._forward, [scheduled.rows() for scheduled in batch], wanted_layers)
        self._forward.wait()
        ran = time.monotonic()
        outputs = score_prompts(batch, outputs)
        first = 0
        verdicts = reach_verdicts(batch, outputs.logits, self._forward.kernels)
        for scheduled, verdict in zip(batch, verdicts, strict=True):
            last = first + scheduled.num_logit_rows
            self._commit(scheduled, outputs.rows(first, last), verdict)
            first = last
        self._pool.flush()
        num_rows = sum(scheduled.num_rows for scheduled in batch)
        if all(scheduled.num_chain == 1 for scheduled in batch):
            self._budget.observe_step(num_rows, ran - started)
        self._metrics.record_step(num_rows, ran - started)
        self._report_load()

    def _commit(self, scheduled: Scheduled, outputs: TargetOutputs, verdict: Verdict | None) -> None:
        generation = scheduled.generation
        if verdict is None:  # its prompt is not read to the end
            self._scheduler.keep(generation, range(scheduled.num_chain))
            return
        tree = scheduled.tree or TokenTree.root_only(generation.tokens[-1])
        accepted = verdict.accepted_nodes
        kept, finish_reason = _obey_stop(generation, verdict.committed_token_ids(tree))
        counted = accepted[: len(kept)]
        self._record(generation, scheduled, kept, counted)
        if scheduled.tree is not None:
            self._drafting.credit(generation, tree, counted)
        logprobs = kept_logprobs(generation, outputs.logits, (ROOT, *accepted), kept)
        generation.append(kept)
        root_row = scheduled.num_chain - 1
        self._scheduler.keep(generation, [*range(scheduled.num_chain), *(root_row + node for node in counted)])
        if finish_reason is None:
            generation.features = outputs.features_at(accepted[-1] if accepted else ROOT)
            self._drafting.ask_for_next(generation, kept)
            generation.listener(StepOutput(kept, logprobs=logprobs, prompt_logprobs=take_prompt_logprobs(generation)))
        else:
            self._finish(generation, kept, logprobs, finish_reason)

    def _record(
        self, generation: Generation, scheduled: Scheduled, kept: Sequence[int], accepted_nodes: Sequence[int]
    ) -> None:
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
            num_accepted=len(accepted_nodes),
            num_committed=len(kept),
        )
        if tree is not None or generation.mailbox.came_empty:
            self._budget.observe_answer(generation.mailbox.budget.max_nodes, num_nodes, accepted_nodes)
        self._budget.observe_tokens(len(kept))
        self._metrics.record_commit(num_nodes, len(accepted_nodes), len(kept), generation.rule)

    def _finish(
        self, generation: Generation, kept: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...], reason: FinishReason
    ) -> None:
        self._forget(generation, str(reason))
        self._metrics.record_finish(str(reason))
        output = StepOutput(kept, reason, generation.checker.stop_string, generation.stats, logprobs=logprobs)
        generation.listener(replace(output, prompt_logprobs=take_prompt_logprobs(generation)))

    # -- news from outside -------------------------------------------------------------------------------------------

    def _read_inbox(self) -> None:
        commands, arrivals = self._inbox.take()
        for run in commands:
            try:
                run()
            except Exception:  # the others must not be lost with it
                _log.exception("a command to the engine failed")
        for arrival in arrivals:
            self._drafting.take_in(arrival)
        if commands or arrivals:
            self._pool.flush()
        if commands:
            self._report_load()

    def _report_load(self) -> None:
        self._metrics.set_load(num_running=self.num_running, num_waiting=self.num_waiting)
        cache = self._cache
        self._metrics.cache.follow(self._scheduler.placements, cache.allocator.num_evictions, cache.usage)

    def _accept(self, generation: Generation) -> None:
        self._generations[generation.key] = generation
        self._scheduler.add(generation)

    def _refuse_overdue(self) -> None:
        """Let go of generations that waited too long for their first place; who came to have one keeps it."""
        for generation in self._scheduler.waiting_since(time.monotonic() - self._max_waiting_s):
            self._metrics.record_rejection(RefusalReason.WAITING_TIME)
            message = f"no place became free within {self._max_waiting_s:g} s; try another verifier or later"
            self._drop(generation, Overloaded(message, retry_after_s=min(self._max_waiting_s, _LONGEST_ADVICE_S)))

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


def _obey_stop(generation: Generation, committed: Sequence[int]) -> tuple[tuple[int, ...], FinishReason | None]:
    """The tokens up to and including the one that ends the generation, and why it ends."""
    for count, token_id in enumerate(committed, start=1):
        reason = generation.checker.push(token_id)
        if reason is not None:
            return tuple(committed[:count]), reason
    return tuple(committed), None
