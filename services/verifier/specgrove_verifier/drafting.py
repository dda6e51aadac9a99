"""The engine's dealings with its drafters: what they are asked for, and what becomes of what they answer.

    ask_for_next(generation)  ──▶ mailbox.expect + Commit/Open to the drafters
    take_in(arrival)          ◀── a tree or a refusal, into the mailbox or dropped and counted
    attach / detach           who is there

Who is asked for nothing hears next to nothing: a session is opened with drafters when it is first granted nodes, and
while it is granted none its tokens are told many at a time. Where drafters share the verifier's cores, reading prompts
and taking in single tokens that nobody drafts for is what switched off speculation would cost.

Lives on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from specgrove.draft import Draft
from specgrove.tree import TokenTree
from specgrove_verifier.budget import Budget
from specgrove_verifier.draft_latency import DraftLatency
from specgrove_verifier.drafter_pool import Drafter, DrafterPool
from specgrove_verifier.generation import Generation
from specgrove_verifier.inbox import Arrival, Refusal
from specgrove_verifier.mailbox import NO_DRAFT, DraftBudget, DraftOutcome
from specgrove_verifier.metrics import EngineMetrics

_MAX_UNTOLD = 32  # tokens; a drafter is at most so far behind when it is asked again


class Drafting:
    """Asks for drafts and takes them in. `generations` is the engine's own table, by key."""

    def __init__(
        self,
        pool: DrafterPool,
        budget: Budget,
        generations: Mapping[int, Generation],
        metrics: EngineMetrics,
        *,
        max_wait_s: float,
    ) -> None:
        self._pool = pool
        self._budget = budget
        self._generations = generations
        self._metrics = metrics
        self._max_wait_s = max_wait_s
        self._granted = budget.limits
        self._waits = DraftLatency()
        self._num_drafted = 0  # sessions that are drafted for together at present

    def grant(self, num_decoding: int, max_nodes: int, num_plain: int = 0) -> None:
        """Set what each of `num_decoding` sessions may be drafted once the coming step is over, `num_plain` of which
        want no drafts.

        `max_nodes` is each one's share of a step: a tree that finds no room is drafted and waited for in vain.
        """
        num_drafted = num_decoding - num_plain if len(self._pool) else 0
        wait_s = self._waits.expected_s(num_drafted)
        self._num_drafted = num_drafted
        self._granted = self._budget.grant(num_drafted, wait_s, max_nodes, num_decoding - num_drafted)

    def feature_layers(self, generations: Iterable[Generation]) -> frozenset[int]:
        """The layers whose states are wanted with the coming step's commits: none where no draft will be asked for."""
        if not self._pool.wants_features:
            return frozenset()
        return self._pool.feature_layers(
            generation for generation in generations if self._budget_for(generation, num_coming=1) != NO_DRAFT
        )

    def ask_for_next(self, generation: Generation, kept: Sequence[int]) -> None:
        """Ask the drafters for the next tree, now that `generation` ends with `kept`; new drafters get it whole."""
        before, budget = generation.mailbox.budget, self._budget_for(generation)
        generation.mailbox.expect(generation.base, budget, generation.drafters)
        generation.num_untold += len(kept) if generation.drafters else 0
        # What became of a tree is told at once: drafters learn from it.
        if before != NO_DRAFT or budget != NO_DRAFT or generation.num_untold >= _MAX_UNTOLD:
            self._tell(generation)
        self.assign(generation)

    def assign(self, generation: Generation) -> None:
        """Give `generation` the drafters it lacks, if anything is asked of them."""
        if generation.mailbox.budget == NO_DRAFT:
            return
        self._tell(generation)  # or those it has and those it gets would stand at different places
        self._pool.assign(generation)
        generation.mailbox.ask_also(generation.drafters)

    def _tell(self, generation: Generation) -> None:
        """Bring the session's drafters up to its last token, as far as they are behind."""
        count, generation.num_untold = generation.num_untold, 0
        if count and generation.drafters:
            first = len(generation.tokens) - count
            self._pool.announce_commit(generation, first, generation.tokens[first:])

    def attach(self, drafter: Drafter) -> None:
        self._pool.attach(drafter)
        self._metrics.set_drafters(len(self._pool))
        for generation in self._generations.values():
            if generation.is_decoding:
                self.assign(generation)

    def detach(self, number: int) -> None:
        drafter = self._pool.get(number)
        self._pool.detach(number, self._generations.values())
        if drafter is not None:
            self._metrics.members.forget(drafter, self._pool.drafters)
        self._metrics.set_drafters(len(self._pool))
        for generation in self._generations.values():
            if generation.is_decoding and not generation.drafters:
                self.assign(generation)

    def take_in(self, arrival: Arrival) -> None:
        """Let what a drafter answered count, if it may."""
        if isinstance(arrival.answer, Draft):
            self._offer(arrival.drafter, arrival.answer, arrival.arrived_s)
        else:
            self._decline(arrival.drafter, arrival.answer)

    def credit(self, generation: Generation, tree: TokenTree, accepted_nodes: Sequence[int]) -> None:
        """Count for its proposers what the target took of the tree that came out of the generation's mailbox."""
        proposers = [self._pool.get(number) for number in generation.mailbox.taken_from]
        self._metrics.members.record(tree, accepted_nodes, proposers)

    def _budget_for(self, generation: Generation, num_coming: int = 0) -> DraftBudget:
        """What may be drafted for `generation`, when `num_coming` more tokens are committed."""
        options = generation.request.speculation
        if not options.is_enabled:
            return NO_DRAFT
        granted = self._granted
        num_left = generation.checker.num_left - num_coming - 1  # the step adds a token of its own
        nodes = min(granted.max_nodes, options.max_nodes or granted.max_nodes)
        depth = min(granted.max_depth, options.max_depth or granted.max_depth, num_left)
        return DraftBudget(nodes, depth) if nodes > 0 and depth > 0 else NO_DRAFT

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
            if not generation.is_first_draft:  # the first one includes the reading of the prompt
                self._waits.observe(self._num_drafted, latency_s)
            generation.is_first_draft = False
        elif outcome is DraftOutcome.LATE and draft.base_len == generation.previous_base[0]:
            # Capped: a drafter that was stopped for a minute is not one that takes a minute.
            latency_s = min(arrived_s - generation.previous_base[1], 2 * self._max_wait_s)
            self._waits.observe(self._num_drafted, latency_s)
        self._pool.note_answer(number, latency_s, is_in_time=(latency_s or 0.0) <= self._max_wait_s)
        self._metrics.record_draft(outcome, latency_s)
        if outcome is DraftOutcome.DIVERGENT:
            self._tell(generation)
            self._pool.reopen(generation, number, generation.mailbox.budget)

    def _decline(self, number: int, refusal: Refusal) -> None:
        self._pool.note_answer(number, None)
        generation = self._generations.get(refusal.session_key)
        if generation is None or number not in generation.drafters:
            return
        if refusal.lost_place:
            self._metrics.record_fallback("lost_place")
            self._tell(generation)
            self._pool.reopen(generation, number, generation.mailbox.budget)
        elif refusal.no_room:
            self._metrics.record_fallback("no_room")
            self._pool.withdraw(generation, number, "no capacity")
            self.assign(generation)
        else:
            self._metrics.record_fallback("declined")
            generation.mailbox.decline(number, refusal.base_len)
