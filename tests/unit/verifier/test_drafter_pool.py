"""Whom the verifier waits for: those who answer in time, and those only."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specgrove_verifier.drafter_pool import Drafter, DrafterPool, SessionUpdate


class _Link:
    def post(self, updates: Sequence[SessionUpdate]) -> None:
        pass


@pytest.fixture
def pool() -> DrafterPool:
    pool = DrafterPool(1)
    pool.attach(Drafter(1, "drafter-1", 8, _Link()))
    return pool


def _is_waited_for(pool: DrafterPool, now: float) -> bool:
    return pool.worth_waiting_for({1}, now) == {1}


def test_a_silent_drafter_is_not_waited_for_until_it_speaks_again(pool: DrafterPool) -> None:
    assert _is_waited_for(pool, 0.0)
    pool.note_silence({1}, 0.0)
    assert not _is_waited_for(pool, 100.0)
    pool.note_answer(1, None)
    assert _is_waited_for(pool, 100.0)


def test_the_pause_after_a_miss_doubles_with_every_miss_in_a_row(pool: DrafterPool) -> None:
    for pause_s in (0.1, 0.2, 0.4):
        pool.note_silence({1}, 0.0)
        pool.note_answer(1, 0.5, is_in_time=False)
        assert not _is_waited_for(pool, 0.99 * pause_s)
        assert _is_waited_for(pool, 1.01 * pause_s)


def test_an_answer_in_time_ends_the_row_of_misses_even_when_it_came_late(pool: DrafterPool) -> None:
    for _ in range(6):
        pool.note_silence({1}, 0.0)
        pool.note_answer(1, 0.05, is_in_time=True)
    assert _is_waited_for(pool, 0.11)


def test_an_excused_miss_has_no_pause(pool: DrafterPool) -> None:
    pool.note_silence({1}, 0.0, is_excused=True)
    assert not _is_waited_for(pool, 0.0)
    pool.note_answer(1, None)
    assert _is_waited_for(pool, 0.0)


def test_the_usual_latency_follows_what_is_seen(pool: DrafterPool) -> None:
    assert pool.latency_s({1}) is None
    assert pool.latency_s([1, 2]) is None
    for _ in range(60):
        pool.note_answer(1, 0.02)
    assert pool.latency_s({1}) == pytest.approx(0.02)
    assert pool.latency_s([1, 2]) == pytest.approx(0.02)
