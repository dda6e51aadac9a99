"""The first verb: which rows of which generations go through the model in the coming step.

    waiting ──admit──▶ running: prefilling ──▶ decoding ──▶ finished
       ▲                  │ no blocks left: the last in rank gives its blocks back and is recomputed later
       └────── preempt ───┘

Rank is the time of arrival, moved by priority (ranking.py). Decoding rows come first; a quarter of the step's token
budget is out of their reach and out of draft nodes' reach while a prompt is in prefill. Of what prompts get the first
in rank takes three quarters, the shortest ones the rest: a long prompt neither stops nor is stopped by short ones.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from specgrove.draft import ChildLaw
from specgrove.runtime.forward import SequenceRows
from specgrove.runtime.kv_cache import CachedSequence, KVCache, OutOfBlocks
from specgrove.runtime.prefix_cache import extend_block_hashes
from specgrove.tree import TokenTree
from specgrove_verifier.generation import Generation
from specgrove_verifier.placements import Placements
from specgrove_verifier.ranking import Ranking

_PREFILL_SHARE = 4  # one row in so many is for prompts, and of those again for the shortest
_USUAL_OUTPUT = 256  # tokens that a generation is given room for in the cache, if it may say so many


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The rows of one generation in a step: `num_chain` uncached committed tokens, then the nodes of `tree`."""

    generation: Generation
    seq: CachedSequence
    num_chain: int
    reaches_end: bool  # the chain ends with the last committed token, so logits are wanted
    tree: TokenTree | None
    laws: tuple[ChildLaw, ...] = ()  # what the tree's nodes were drawn from, under rule `mss`
    scored: range = range(0)  # of the chain, the rows that the prompt's own logprobs are read from

    @property
    def num_rows(self) -> int:
        return self.num_chain + (self.tree.num_draft_nodes if self.tree else 0)

    @property
    def num_logit_rows(self) -> int:
        """Rows that choose tokens; those that score the prompt come before them."""
        return 1 + (self.tree.num_draft_nodes if self.tree else 0) if self.reaches_end else 0

    def rows(self) -> SequenceRows:
        """The packed rows: the chain, then the tree's nodes under its last row."""
        start = self.seq.cached_len
        root = self.num_chain - 1
        token_ids = self.generation.tokens[start : start + self.num_chain]
        parents = list(range(-1, root))
        positions = list(range(start, start + self.num_chain))
        wants = [False] * root + [self.reaches_end]
        for row in self.scored:
            wants[row] = True
        if self.tree is not None:
            token_ids = [*token_ids, *self.tree.token_ids[1:]]
            parents += [root + parent for parent in self.tree.parents[1:]]
            positions += [start + root + depth for depth in self.tree.depths[1:]]
            wants += [True] * self.tree.num_draft_nodes
        return SequenceRows(self.seq, token_ids, positions, parents, wants)


class Scheduler:
    """Keeps the two lists and composes steps. Never asks the cache for more than it has."""

    def __init__(
        self,
        cache: KVCache,
        *,
        max_sessions: int,
        max_step_rows: int,
        ranking: Ranking | None = None,
        has_prefix_cache: bool = True,
    ) -> None:
        self._cache = cache
        # Each session has a row in every step, and the prompts' share stays free of them.
        self._max_sessions = min(max_sessions, max_step_rows - max_step_rows // _PREFILL_SHARE)
        self._max_step_rows = max_step_rows
        self._rank = (ranking if ranking is not None else Ranking()).rank
        self._has_prefix_cache = has_prefix_cache
        self.waiting: list[Generation] = []  # by rank
        self.running: list[Generation] = []  # the same
        self.placements = Placements()

    def add(self, generation: Generation) -> None:
        insort(self.waiting, generation, key=self._rank)

    def remove(self, generation: Generation) -> None:
        """Forget a generation and give its blocks back, wherever it is."""
        for queue in (self.waiting, self.running):
            if generation in queue:
                queue.remove(generation)
        if generation.seq is not None:
            self._cache.release(generation.seq)
            generation.seq = None

    def keep(self, generation: Generation, kept_rows: Sequence[int]) -> None:
        """Keep these rows of the step, whose tokens are among the generation's by now, and let others find them."""
        seq = generation.seq
        if seq is None:
            return
        self._cache.commit(seq, kept_rows)
        if self._has_prefix_cache:
            self._cache.publish(seq, self._block_hashes(generation))

    def waiting_since(self, before_s: float) -> list[Generation]:
        """Those that came before this time and never had a place, here or, as far as one can see, anywhere."""
        return [
            generation
            for generation in self.waiting
            if generation.arrived_s < before_s
            and not generation.had_place
            and not generation.request.committed_token_ids
        ]

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
        prompts = [generation for generation in self.running if not generation.is_decoding]
        for generation, num_chain in _share_out(prompts, room):
            self._place(generation, num_chain, None, step)
        return step

    def _admit(self) -> None:
        allocator = self._cache.allocator
        num_free = allocator.num_free - sum(map(self._num_missing_blocks, self.running))
        while self.waiting and len(self.running) < self._max_sessions:
            generation = self.waiting[0]
            prefix = self._reusable_hashes(generation)
            num_wanted = self._num_missing_blocks(generation) - self._cache.num_prefix_blocks_shared(prefix)
            if self.running and num_wanted > num_free:
                return
            num_before = allocator.num_free
            self.waiting.pop(0)
            self._give_place(generation, prefix)
            num_free -= num_before - allocator.num_free + self._num_missing_blocks(generation)

    def _give_place(self, generation: Generation, prefix: Sequence[bytes]) -> None:
        num_tokens = len(generation.tokens)
        generation.seq = self._cache.new_sequence(num_tokens + min(generation.checker.num_left, _USUAL_OUTPUT))
        self._cache.start_with(generation.seq, prefix)
        if not generation.had_place and self._has_prefix_cache:  # one that comes back mostly finds itself
            self.placements.num_queried_tokens += num_tokens
            self.placements.num_hit_tokens += generation.seq.cached_len
        generation.had_place = True
        insort(self.running, generation, key=self._rank)

    def _reusable_hashes(self, generation: Generation) -> Sequence[bytes]:
        """The hashes of the blocks that `generation` may begin with: one row at least must give logits, and all must
        that score its prompt."""
        if not self._has_prefix_cache:
            return ()
        num_known = len(generation.tokens) - 1
        if generation.num_unscored:
            num_known = generation.first_unscored
        return self._block_hashes(generation)[: num_known // self._cache.block_size]

    def _block_hashes(self, generation: Generation) -> Sequence[bytes]:
        extend_block_hashes(generation.block_hashes, generation.tokens, self._cache.block_size)
        return generation.block_hashes

    def _num_missing_blocks(self, generation: Generation) -> int:
        """Blocks that the committed tokens and the next one still need."""
        num_held = len(generation.seq.block_table) if generation.seq is not None else 0
        return max(self._cache.blocks_for(len(generation.tokens) + 1) - num_held, 0)

    def _place(self, generation: Generation, num_chain: int, tree: TokenTree | None, step: list[Scheduled]) -> int:
        """Reserve and append the rows of `generation`; returns how many. Makes room by preempting the last in rank."""
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
            scored = _scored_rows(generation, generation.seq.cached_len, num_chain)
            step.append(Scheduled(generation, generation.seq, num_chain, reaches_end, tree, laws, scored))
            return num_chain + num_nodes
        return 0

    def _preempt(self, victim: Generation, step: list[Scheduled]) -> None:
        # One of later rank may stand in the step already: a prompt of one token decodes before an older prefill.
        step[:] = [scheduled for scheduled in step if scheduled.generation is not victim]
        self.running.remove(victim)
        if victim.seq is not None:
            self._cache.release(victim.seq)
        victim.seq = None
        self.placements.num_preemptions += 1
        self.add(victim)


def _scored_rows(generation: Generation, cached_len: int, num_chain: int) -> range:
    """Of the next `num_chain` rows, those whose laws give logprobs of the prompt that are still wanted."""
    if not generation.num_unscored:
        return range(0)
    first, last = generation.first_unscored - cached_len, generation.prompt_len - 1 - cached_len
    return range(first, min(last, num_chain))


def _draft_size(generation: Generation, tree: TokenTree) -> int:
    """The rows that `tree` needs room for, or is given up. A tree that was drawn from laws counts with its whole
    budget: whether it is given up may not depend on what was drawn (specgrove.draft_laws)."""
    return generation.mailbox.budget.max_nodes if generation.mailbox.taken_laws else tree.num_draft_nodes


def _share_out(prompts: Sequence[Generation], room: int) -> list[tuple[Generation, int]]:
    """How many rows each of these prompts, in order of rank, gets out of `room`, in order of rank; none for some."""
    shares: dict[int, int] = {}
    if prompts and room > 0:
        first = prompts[0]
        left_over = room // _PREFILL_SHARE
        shares[first.key] = min(first.num_uncached, room - left_over)
        room -= shares[first.key]
        for generation in sorted(prompts[1:], key=lambda generation: generation.num_uncached):
            if room > 0:
                shares[generation.key] = min(generation.num_uncached, room)
                room -= shares[generation.key]
        shares[first.key] = min(first.num_uncached, shares[first.key] + room)
    return [(generation, shares[generation.key]) for generation in prompts if generation.key in shares]
