"""The first verb: which rows of which generations go through the model in the coming step.

    waiting ──admit──▶ running: prefilling ──▶ decoding ──▶ finished
       ▲                  │ no blocks left: the youngest gives its blocks back and is recomputed later
       └────── preempt ───┘

Decoding rows come first, oldest generation first; prefill chunks fill what is left of the step's token budget, and
draft nodes may not take the last of it from a prompt that waits.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass

from specgrove.draft import ChildLaw
from specgrove.runtime.forward import SequenceRows
from specgrove.runtime.kv_cache import CachedSequence, KVCache, OutOfBlocks
from specgrove.tree import TokenTree
from specgrove_verifier.generation import Generation

_PREFILL_SHARE = 4  # a step with a prompt in prefill keeps one row in so many free of draft nodes


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The rows of one generation in a step: `num_chain` uncached committed tokens, then the nodes of `tree`."""

    generation: Generation
    seq: CachedSequence
    num_chain: int
    reaches_end: bool  # the chain ends with the last committed token, so logits are wanted
    tree: TokenTree | None
    laws: tuple[ChildLaw, ...] = ()  # what the tree's nodes were drawn from, under rule `mss`

    @property
    def num_rows(self) -> int:
        return self.num_chain + (self.tree.num_draft_nodes if self.tree else 0)

    @property
    def num_logit_rows(self) -> int:
        return 1 + (self.tree.num_draft_nodes if self.tree else 0) if self.reaches_end else 0

    def rows(self) -> SequenceRows:
        """The packed rows: the chain, then the tree's nodes under its last row."""
        start = self.seq.cached_len
        root = self.num_chain - 1
        token_ids = self.generation.tokens[start : start + self.num_chain]
        parents = list(range(-1, root))
        positions = list(range(start, start + self.num_chain))
        wants = [False] * root + [self.reaches_end]
        if self.tree is not None:
            token_ids = [*token_ids, *self.tree.token_ids[1:]]
            parents += [root + parent for parent in self.tree.parents[1:]]
            positions += [start + root + depth for depth in self.tree.depths[1:]]
            wants += [True] * self.tree.num_draft_nodes
        return SequenceRows(self.seq, token_ids, positions, parents, wants)


class Scheduler:
    """Keeps the two lists and composes steps. Never asks the cache for more than it has."""

    def __init__(self, cache: KVCache, *, max_sessions: int, max_step_rows: int) -> None:
        self._cache = cache
        self._max_sessions = min(max_sessions, max_step_rows)  # each has a row in every step
        self._max_step_rows = max_step_rows
        self.waiting: list[Generation] = []  # by key, oldest first
        self.running: list[Generation] = []  # the same
        self.num_preemptions = 0

    def add(self, generation: Generation) -> None:
        insort(self.waiting, generation, key=_age)

    def remove(self, generation: Generation) -> None:
        """Forget a generation and give its blocks back, wherever it is."""
        for queue in (self.waiting, self.running):
            if generation in queue:
                queue.remove(generation)
        if generation.seq is not None:
            self._cache.release(generation.seq)
            generation.seq = None

    def is_step_full(self) -> bool:
        """Whether rows that need no draft fill the coming step by themselves."""
        num_ready = sum(
            generation.num_uncached
            for generation in self.running
            if not generation.is_decoding or not generation.mailbox.missing()
        )
        return num_ready >= self._max_step_rows

    def max_draft_nodes(self, num_decoding: int) -> int:
        """How large the trees of so many sessions may be if all of them are to fit one step."""
        return self._max_step_rows // num_decoding - 1

    def compose(self, left_out: Collection[int] = ()) -> list[Scheduled]:
        """The rows of the coming step; their slots are reserved. Takes the trees out of the mailboxes, but for the
        generations `left_out` (keys), which get no rows."""
        self._admit()
        step: list[Scheduled] = []
        decoding = [generation for generation in self.running if generation.is_decoding]
        decoding = [generation for generation in decoding if generation.key not in left_out]
        for_drafts = self._max_step_rows - len(decoding)
        if any(not generation.is_decoding for generation in self.running):
            for_drafts -= self._max_step_rows // _PREFILL_SHARE
        room = self._max_step_rows
        for generation in decoding:
            tree = generation.mailbox.take()
            if tree is not None and _draft_size(generation, tree) > for_drafts:
                tree = None
            num_placed = self._place(generation, 1, tree, step)
            for_drafts -= max(num_placed - 1, 0)
            room -= num_placed
        for generation in [*self.running]:
            if not generation.is_decoding and room > 0:
                room -= self._place(generation, min(generation.num_uncached, room), None, step)
        return step

    def _admit(self) -> None:
        num_free = self._cache.allocator.num_free - sum(map(self._num_missing_blocks, self.running))
        while self.waiting and len(self.running) < self._max_sessions:
            generation = self.waiting[0]
            num_wanted = self._num_missing_blocks(generation)
            if self.running and num_wanted > num_free:
                return
            num_free -= num_wanted
            self.waiting.pop(0)
            generation.seq = self._cache.new_sequence()
            insort(self.running, generation, key=_age)

    def _num_missing_blocks(self, generation: Generation) -> int:
        """Blocks that the committed tokens and the next one still need."""
        num_held = len(generation.seq.block_table) if generation.seq is not None else 0
        return max(self._cache.blocks_for(len(generation.tokens) + 1) - num_held, 0)

    def _place(self, generation: Generation, num_chain: int, tree: TokenTree | None, step: list[Scheduled]) -> int:
        """Reserve and append the rows of `generation`; returns how many. Makes room by preempting the youngest."""
        while generation.seq is not None:
            num_nodes = tree.num_draft_nodes if tree else 0
            try:
                self._cache.reserve(generation.seq, num_chain + (_draft_size(generation, tree) if tree else 0))
            except OutOfBlocks:
                if tree is not None:
                    tree = None  # a draft is never worth a preemption
                else:
                    self._preempt(self.running[-1], step)
                continue
            reaches_end = num_chain == generation.num_uncached
            laws = generation.mailbox.taken_laws if tree else ()
            step.append(Scheduled(generation, generation.seq, num_chain, reaches_end, tree, laws))
            return num_chain + num_nodes
        return 0

    def _preempt(self, victim: Generation, step: list[Scheduled]) -> None:
        # A younger generation may stand in the step already: a prompt of one token decodes before an older prefill.
        step[:] = [scheduled for scheduled in step if scheduled.generation is not victim]
        self.running.remove(victim)
        if victim.seq is not None:
            self._cache.release(victim.seq)
        victim.seq = None
        self.num_preemptions += 1
        self.add(victim)


def _draft_size(generation: Generation, tree: TokenTree) -> int:
    """The rows that `tree` needs room for, or is given up. A tree that was drawn from laws counts with its whole
    budget: whether it is given up may not depend on what was drawn (specgrove.draft_laws)."""
    return generation.mailbox.budget.max_nodes if generation.mailbox.taken_laws else tree.num_draft_nodes


def _age(generation: Generation) -> int:
    return generation.key
