"""Nobody starves: prompts, decoding streams and low priorities all move on, whoever else floods the verifier."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specgrove_verifier.ranking import Ranking
from specgrove_verifier.scheduler import Scheduled
from support.scheduler_bench import Bench, keys


def _rows(batch: Sequence[Scheduled], key: int) -> int:
    return sum(scheduled.num_rows for scheduled in batch if scheduled.generation.key == key)


def test_a_flood_of_long_prompts_does_not_stop_a_stream() -> None:
    bench = Bench(num_blocks=400, max_step_rows=8)
    stream = bench.add(2)
    bench.step()
    for _ in range(5):
        bench.add(200)
    for _ in range(40):
        assert _rows(bench.step(), stream.key) == 1


@pytest.mark.parametrize("max_step_rows", [8, 16, 33])
def test_many_streams_do_not_stop_a_prompt(max_step_rows: int) -> None:
    """With as many sessions as are let in, all drafting, a prompt still gets its quarter in every step."""
    bench = Bench(num_blocks=2000, max_step_rows=max_step_rows, max_sessions=1000)
    streams = [bench.add(2, arrived_s=float(place)) for place in range(1000)]
    for _ in range(400):
        bench.step()
        if all(generation.is_decoding for generation in bench.scheduler.running):
            break
    bench.scheduler.remove(bench.scheduler.running[-1])
    prompt = bench.add(300, arrived_s=-1.0)
    while not prompt.is_decoding:
        for stream in streams:
            if stream.is_decoding:
                bench.draft(stream, [(11, 12), (13,)])
        num_left = prompt.num_uncached
        batch = bench.step()
        assert _rows(batch, prompt.key) >= min(max_step_rows // 4, num_left)
        assert sum(scheduled.num_rows for scheduled in batch) <= max_step_rows
        assert all(_rows(batch, stream.key) for stream in streams if stream.is_decoding)


def test_a_short_prompt_overtakes_a_long_one_and_does_not_stop_it() -> None:
    bench = Bench(num_blocks=400, max_step_rows=16)
    long, short = bench.add(300), bench.add(7)
    batch = bench.step()
    assert [_rows(batch, key) for key in (long.key, short.key)] == [12, 4]
    bench.step()
    assert short.is_decoding
    for _ in range(5):
        bench.add(7)
        assert _rows(bench.step(), long.key) >= 10


def test_what_the_first_prompt_does_not_need_goes_to_the_others_and_back() -> None:
    bench = Bench(num_blocks=400, max_step_rows=16)
    short, long = bench.add(3), bench.add(40)
    batch = bench.step()
    assert [_rows(batch, key) for key in (short.key, long.key)] == [3, 13]
    bench = Bench(num_blocks=400, max_step_rows=16)
    long, short = bench.add(40), bench.add(1)
    batch = bench.step()
    assert [_rows(batch, key) for key in (long.key, short.key)] == [15, 1]


def test_the_lower_priority_number_is_let_in_first() -> None:
    bench = Bench(num_blocks=400, max_sessions=1)
    first = bench.add(3, priority=3)
    bench.step()
    low, middle, high = bench.add(3, priority=5), bench.add(3), bench.add(3, priority=-2)
    assert bench.scheduler.running == [first]  # who runs is not thrown out for a newcomer
    assert bench.scheduler.waiting == [high, middle, low]
    order = []
    for _ in range(4):
        order += keys(bench.step())
        bench.scheduler.remove(bench.scheduler.running[0])
    assert order == [first.key, high.key, middle.key, low.key]


def test_the_last_in_rank_gives_way_when_blocks_run_out() -> None:
    bench = Bench(num_blocks=4)
    unimportant = bench.add(6, priority=1)
    important = bench.add(6)
    for _ in range(4):
        bench.step()
    assert bench.scheduler.waiting == [unimportant]
    assert bench.scheduler.running == [important]


def test_who_was_thrown_out_comes_back_before_those_behind_it() -> None:
    bench = Bench(num_blocks=4)
    old, young = bench.add(6), bench.add(6)
    for _ in range(4):
        bench.step()
    newcomer = bench.add(2, arrived_s=1.0)
    assert bench.scheduler.waiting == [young, newcomer]
    bench.scheduler.remove(old)
    assert keys(bench.step())[0] == young.key


def test_a_low_priority_ages_past_a_flood_of_high_ones() -> None:
    """Two newcomers of priority 0 a second, one session served a second: priority 3 waits 3 x 5 s, not for ever."""
    bench = Bench(num_blocks=40, max_sessions=1, ranking=Ranking(ageing_s=5.0))
    low = bench.add(3, priority=3)
    for second in range(60):
        for half in (0.0, 0.5):
            bench.add(3, arrived_s=second + half)
        (served,) = bench.step()
        bench.scheduler.remove(served.generation)
        if served.generation is low:
            assert second > 20  # until then those that came in the first fifteen seconds were served
            return
    raise AssertionError("the low priority was never served")


def test_no_priority_makes_anybody_wait_for_ever() -> None:
    bench = Bench(num_blocks=40)
    worst, best = bench.add(3, priority=2**31 - 1), bench.add(3, priority=-(2**31), arrived_s=5000.0)
    assert bench.scheduler.waiting == [worst, best]
    near = bench.add(3, priority=2**31 - 2)
    assert bench.scheduler.waiting == [near, worst, best]


def test_only_those_that_never_had_a_place_are_overdue() -> None:
    bench = Bench(num_blocks=4, max_sessions=2)
    old, young = bench.add(6), bench.add(6)
    for _ in range(4):
        bench.step()
    late, resumed, fresh = bench.add(6), bench.add(6, committed=[5]), bench.add(6, arrived_s=50.0)
    assert bench.scheduler.waiting == [young, late, resumed, fresh]
    assert bench.scheduler.waiting_since(10.0) == [late]
    assert bench.scheduler.running == [old]


def test_an_unused_prefix_counts_as_room_and_a_shared_one_costs_nothing() -> None:
    """Ten sessions that begin alike fit where two that do not would: attention reads their blocks wherever they lie."""
    bench = Bench(num_blocks=10, has_prefix_cache=True, shares_blocks=True)
    first = bench.add(25)
    bench.step()
    others = [bench.add(25) for _ in range(2)]
    batch = bench.step()
    assert keys(batch) == [first.key, *(other.key for other in others)]
    assert [scheduled.num_chain for scheduled in batch] == [1, 1, 1]
    assert bench.scheduler.placements.num_hit_tokens == 48
    assert bench.scheduler.placements.num_queried_tokens == 75


def test_who_was_thrown_out_begins_with_what_is_left_of_itself() -> None:
    bench = Bench(num_blocks=5, has_prefix_cache=True)
    old, young = bench.add(6), bench.add(6, token_id=7)
    for _ in range(4):
        bench.step()
    assert bench.scheduler.waiting == [young]
    bench.scheduler.remove(old)
    (scheduled,) = bench.step()
    assert scheduled.num_chain < len(young.tokens) - 1
    assert bench.scheduler.placements.num_queried_tokens == 12  # coming back is not asked again
