"""Which rows a step has: the token budget, who goes first, who waits, who gives way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
import torch

from specgrove.draft import Draft
from specgrove.runtime.kv_cache import KVCache, KVShape
from specgrove.sampling.noise import NoiseRows
from specgrove.tree import TokenTree
from specgrove_verifier.generation import Generation
from specgrove_verifier.mailbox import DraftBudget, DraftMailbox
from specgrove_verifier.scheduler import Scheduled, Scheduler
from specgrove_verifier.stopping import StopChecker
from support.generation_requests import make_request

BLOCK_SIZE = 4


class Bench:
    """A scheduler over a real cache, with steps that commit one token for each generation that reaches its end."""

    def __init__(
        self, *, num_blocks: int, max_step_rows: int = 64, max_sessions: int = 16, has_prefix_cache: bool = False
    ) -> None:
        self.cache = KVCache(KVShape(1, 1, 1, torch.float32), num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self.scheduler = Scheduler(
            self.cache, max_sessions=max_sessions, max_step_rows=max_step_rows, has_prefix_cache=has_prefix_cache
        )
        self._keys = count(1)

    def add(self, prompt_len: int) -> Generation:
        request = make_request([5] * prompt_len, 100)
        generation = Generation(
            next(self._keys),
            request,
            checker=StopChecker(request.stop, eos_token_ids=(), room=1000, tokenizer=None),
            noise=NoiseRows(0, 8),
            mailbox=DraftMailbox(64),
            listener=lambda output: None,
            arrived_s=0.0,
        )
        self.scheduler.add(generation)
        return generation

    def step(self, token_id: int = 6) -> list[Scheduled]:
        batch = self.scheduler.compose()
        for scheduled in batch:
            self.cache.reserve(scheduled.seq, scheduled.num_rows)  # as the forward does: a no-op by now
            rows = scheduled.rows()
            self.cache.append_rows(rows.seq, rows.parents, rows.positions)
            if scheduled.reaches_end:
                scheduled.generation.append([token_id])
            self.scheduler.keep(scheduled.generation, range(scheduled.num_chain))
        return batch

    def draft(self, generation: Generation, paths: Sequence[Sequence[int]]) -> None:
        """A tree for the coming step of `generation`."""
        tree = TokenTree.from_paths(generation.tokens[-1], paths)
        generation.mailbox.expect(generation.base, DraftBudget(64, 64), frozenset({1}))
        base = generation.base
        draft = Draft(generation.key, base.length, base.hash, tree.token_ids[1:], tree.parents[1:], tree.members[1:])
        assert generation.mailbox.offer(1, draft).is_kept


def _keys(batch: list[Scheduled]) -> list[int]:
    return [scheduled.generation.key for scheduled in batch]


def test_a_prompt_is_prefilled_in_chunks_and_then_decodes() -> None:
    bench = Bench(num_blocks=20, max_step_rows=8)
    generation = bench.add(18)
    assert [(scheduled.num_chain, scheduled.reaches_end) for scheduled in bench.step()] == [(8, False)]
    assert [(scheduled.num_chain, scheduled.reaches_end) for scheduled in bench.step()] == [(8, False)]
    assert [(scheduled.num_chain, scheduled.reaches_end) for scheduled in bench.step()] == [(2, True)]
    assert generation.is_decoding
    assert [(scheduled.num_chain, scheduled.reaches_end) for scheduled in bench.step()] == [(1, True)]


def test_the_rows_of_a_tree_hang_under_the_last_committed_token() -> None:
    bench = Bench(num_blocks=20)
    generation = bench.add(5)
    bench.step(token_id=9)
    bench.draft(generation, [(11, 12), (13,)])
    (scheduled,) = bench.scheduler.compose()
    rows = scheduled.rows()
    assert list(rows.token_ids) == [9, 11, 12, 13]
    assert list(rows.positions) == [5, 6, 7, 6]
    assert list(rows.parents) == [-1, 0, 1, 0]
    assert list(rows.wants_logits) == [True] * 4


def test_decoding_goes_before_prefill_and_both_share_the_step() -> None:
    bench = Bench(num_blocks=40, max_step_rows=8)
    old = bench.add(3)
    bench.step()
    young = bench.add(20)
    batch = bench.step()
    assert _keys(batch) == [old.key, young.key]
    assert [scheduled.num_chain for scheduled in batch] == [1, 7]


@pytest.mark.parametrize("num_sessions", [3, 8, 12])
def test_a_step_never_has_more_rows_than_the_token_budget(num_sessions: int) -> None:
    bench = Bench(num_blocks=200, max_step_rows=8)
    generations = [bench.add(1 + place % 5) for place in range(num_sessions)]
    for _ in range(30):
        for generation in generations:
            if generation.is_decoding:
                bench.draft(generation, [(11, 12), (13,)])
        batch = bench.step()
        assert 0 < sum(scheduled.num_rows for scheduled in batch) <= 8


def test_drafts_do_not_starve_a_prompt() -> None:
    """Trees that would fill every step leave room for the prefill of a newcomer."""
    bench = Bench(num_blocks=200, max_step_rows=16)
    old = [bench.add(2) for _ in range(4)]
    bench.step()
    young = bench.add(12)
    for _ in range(6):
        for generation in old:
            bench.draft(generation, [(11, 12, 13)])
        bench.step()
    assert young.is_decoding


def test_without_room_the_youngest_gives_its_blocks_back_and_comes_back_later() -> None:
    bench = Bench(num_blocks=4)
    old, young = bench.add(6), bench.add(6)
    bench.step()
    for _ in range(3):
        bench.step()
    assert young.seq is None
    assert bench.scheduler.waiting == [young]
    assert bench.scheduler.placements.num_preemptions == 1
    bench.scheduler.remove(old)
    (scheduled,) = bench.step()
    assert scheduled.num_chain == len(young.tokens) - 1  # prompt and output again, before the token of this step


def test_a_prompt_in_prefill_outranks_a_younger_one_that_decodes_already() -> None:
    """A prompt of one token decodes at once, while an older, long one is still in prefill and runs out of blocks."""
    bench = Bench(num_blocks=5, max_step_rows=2)
    old = bench.add(15)
    young = bench.add(1)
    while not old.is_decoding:
        assert old.key in _keys(bench.step())
    assert young.seq is None
    assert bench.scheduler.waiting == [young]
    bench.scheduler.remove(old)
    assert _keys(bench.step()) == [young.key]


def test_a_draft_is_given_up_before_anybody_is_preempted() -> None:
    bench = Bench(num_blocks=2)
    generation = bench.add(6)
    bench.step()
    bench.draft(generation, [tuple(range(10, 20))])
    (scheduled,) = bench.step()
    assert scheduled.tree is None
    assert bench.scheduler.placements.num_preemptions == 0


def test_a_prompt_that_does_not_fit_beside_the_running_ones_waits() -> None:
    """Rather than be prefilled in part, thrown out for want of blocks, and started again, step after step."""
    bench = Bench(num_blocks=10, max_step_rows=8)
    old = bench.add(12)
    bench.step()
    bench.step()
    young = bench.add(30)
    for _ in range(6):
        assert _keys(bench.step()) == [old.key]
    assert bench.scheduler.placements.num_preemptions == 0
    bench.scheduler.remove(old)
    assert _keys(bench.step()) == [young.key]


def test_two_prompts_that_fit_one_at_a_time_are_not_admitted_together() -> None:
    bench = Bench(num_blocks=10, max_step_rows=64)
    first, second = bench.add(24), bench.add(24)
    for _ in range(4):
        assert _keys(bench.step()) == [first.key]
    assert bench.scheduler.placements.num_preemptions == 0
    assert bench.scheduler.waiting == [second]


def test_a_prompt_alone_is_always_admitted() -> None:
    bench = Bench(num_blocks=2)
    bench.add(8)
    assert len(bench.step()) == 1


def test_at_most_max_sessions_run_and_the_oldest_go_first() -> None:
    bench = Bench(num_blocks=40, max_sessions=2)
    generations = [bench.add(3) for _ in range(4)]
    assert _keys(bench.step()) == [1, 2]
    bench.scheduler.remove(generations[0])
    assert _keys(bench.step()) == [2, 3]
    assert bench.scheduler.waiting == [generations[3]]


def test_removing_gives_every_block_back_wherever_the_generation_is() -> None:
    bench = Bench(num_blocks=40, max_sessions=2)
    generations = [bench.add(7) for _ in range(3)]
    bench.step()
    for generation in generations:
        bench.scheduler.remove(generation)
        bench.scheduler.remove(generation)
    assert bench.cache.allocator.num_free == 40
    assert bench.step() == []
