"""Every stage of a request's way in has a bound, and leaving gives the place back."""

from __future__ import annotations

import asyncio

import pytest

from specgrove.errors import Overloaded
from specgrove_gateway.admission import Admission


async def hold(admission: Admission, release: asyncio.Event) -> None:
    async with admission.slot():
        await release.wait()


async def test_waiters_get_their_turn_in_order() -> None:
    admission = Admission(max_running=1, max_waiting=5, max_wait_s=5)
    order: list[int] = []

    async def work(number: int) -> None:
        async with admission.slot():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert (admission.num_running, admission.num_waiting) == (0, 0)


async def test_a_full_queue_refuses_at_once() -> None:
    admission = Admission(max_running=1, max_waiting=0, max_wait_s=60)
    release = asyncio.Event()
    running = asyncio.create_task(hold(admission, release))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await hold(admission, release)
    release.set()
    await running
    await hold(admission, release)


async def test_waiting_has_a_limit_and_says_when_to_come_back() -> None:
    admission = Admission(max_running=1, max_waiting=1, max_wait_s=0.05)
    running = asyncio.create_task(hold(admission, asyncio.Event()))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as raised:
        await hold(admission, asyncio.Event())
    assert raised.value.retry_after_s > 0
    assert admission.num_waiting == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert admission.num_running == 0


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    admission = Admission(max_running=1, max_waiting=1, max_wait_s=60)
    release = asyncio.Event()
    running = asyncio.create_task(hold(admission, release))
    waiting = asyncio.create_task(hold(admission, release))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert admission.num_waiting == 0
    release.set()
    await running
    await hold(admission, release)


def test_arrivals_are_bounded() -> None:
    admission = Admission(max_running=1, max_waiting=0, max_wait_s=1)
    with admission.arriving(), pytest.raises(Overloaded), admission.arriving():
        pass
    with admission.arriving():
        assert admission.num_arriving == 1
