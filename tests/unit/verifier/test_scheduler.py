"""Which rows a step has: the token budget, who goes first, who waits, who gives way."""

from __future__ import annotations

import pytest

from support.scheduler_bench import Bench, keys


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
    assert keys(batch) == [old.key, young.key]
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
        assert old.key in keys(bench.step())
    assert young.seq is None
    assert bench.scheduler.waiting == [young]
    bench.scheduler.remove(old)
    assert keys(bench.step()) == [young.key]


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
        assert keys(bench.step()) == [old.key]
    assert bench.scheduler.placements.num_preemptions == 0
    bench.scheduler.remove(old)
    assert keys(bench.step()) == [young.key]


def test_two_prompts_that_fit_one_at_a_time_are_not_admitted_together() -> None:
    bench = Bench(num_blocks=10, max_step_rows=64)
    first, second = bench.add(24), bench.add(24)
    for _ in range(4):
        assert keys(bench.step()) == [first.key]
    assert bench.scheduler.placements.num_preemptions == 0
    assert bench.scheduler.waiting == [second]


def test_a_prompt_alone_is_always_admitted() -> None:
    bench = Bench(num_blocks=2)
    bench.add(8)
    assert len(bench.step()) == 1


def test_at_most_max_sessions_run_and_the_oldest_go_first() -> None:
    bench = Bench(num_blocks=40, max_sessions=2)
    generations = [bench.add(3) for _ in range(4)]
    assert keys(bench.step()) == [1, 2]
    bench.scheduler.remove(generations[0])
    assert keys(bench.step()) == [2, 3]
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
