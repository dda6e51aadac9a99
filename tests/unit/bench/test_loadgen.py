"""Closed and open loops over a client that answers after a set time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrove_bench.loadgen import LoadRun, closed_loop, open_loop, poisson_arrivals
from specgrove_bench.request import Ask, Record
from support.bench_records import FakeClient, answer_of


def _asks(count: int) -> list[Ask]:
    return [Ask(place, "own", (1,), max_tokens=2) for place in range(count)]


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_closed_loop_keeps_so_many_requests_in_flight_and_no_more(concurrency: int) -> None:
    client = FakeClient(0.005)
    run = await closed_loop(client, _asks(7), concurrency)
    assert client.most_at_once == concurrency
    assert [record.prompt for record in run.records] == list(range(7))


async def test_closed_loop_with_fewer_requests_than_clients_sends_each_once() -> None:
    client = FakeClient()
    await closed_loop(client, _asks(2), 8)
    assert client.asked == [0, 1]


async def test_open_loop_sends_when_due_whatever_is_unanswered() -> None:
    client = FakeClient(0.2)
    run = await open_loop(client, _asks(4), (0.0, 0.01, 0.02, 0.03))
    assert client.most_at_once == 4
    assert [record.sent_s for record in run.records] == pytest.approx([0.0, 0.01, 0.02, 0.03], abs=0.1)
    assert run.full_load_s == 0.03


async def test_failed_request_is_kept_with_its_reason_and_the_others_go_on() -> None:
    run = await closed_loop(FakeClient(fails=lambda prompt: prompt == 1), _asks(3), 2)
    assert [record.is_ok for record in run.records] == [True, False, True]
    assert run.records[1].answer.error == "the server answered 500"


def test_full_load_throughput_leaves_out_the_tail() -> None:
    records = (
        Record(0, "own", 0.0, 0.0, answer_of((0.5, 1), (1.0, 1))),
        Record(1, "own", 1.0, 0.0, answer_of((0.5, 4), (2.0, 9))),
    )
    assert LoadRun(records, duration_s=3.0, full_load_s=2.0).full_load_tokens_per_s == pytest.approx(6 / 2)


@given(rate=st.floats(0.1, 50), count=st.integers(1, 50), seed=st.integers(0, 9))
def test_arrivals_begin_at_once_ascend_and_repeat_with_their_seed(rate: float, count: int, seed: int) -> None:
    arrivals = poisson_arrivals(rate, count, seed)
    assert len(arrivals) == count
    assert arrivals[0] == 0.0
    assert list(arrivals) == sorted(arrivals)
    assert arrivals == poisson_arrivals(rate, count, seed)


def test_arrivals_come_at_the_rate_asked_for() -> None:
    arrivals = poisson_arrivals(4.0, 4000, seed=1)
    assert arrivals[-1] == pytest.approx(1000.0, rel=0.06)
