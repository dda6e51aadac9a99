"""Who may generate now: a bounded number runs, a bounded number waits its turn, the rest is told when to come back.

arriving (parsed, tokenised) ─▶ waiting ─▶ running        each stage has a bound
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from specgrove.errors import Overloaded


class Admission:
    """First come, first served. `num_running` and `num_waiting` are the current counts."""

    def __init__(self, max_running: int, max_waiting: int, max_wait_s: float) -> None:
        self.max_running = max_running
        self._slots = asyncio.Semaphore(max_running)
        self._gathering = asyncio.Lock()
        self._max_waiting = max_waiting
        self._max_arriving = max_running + max_waiting
        self._max_wait_s = max_wait_s
        self.num_arriving = 0
        self.num_running = 0
        self.num_waiting = 0

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Hold while a request is parsed and tokenised. Raises Overloaded when too many others are.

        Not while its body still comes in: slow clients would shut the others out.
        """
        if self.num_arriving >= self._max_arriving:
            raise Overloaded("too many requests are arriving at once; try again later", retry_after_s=1.0)
        self.num_arriving += 1
        try:
            yield
        finally:
            self.num_arriving -= 1

    @asynccontextmanager
    async def slot(self, count: int = 1) -> AsyncIterator[None]:
        """Hold a slot, or `count` of them, for the block. Raises Overloaded when the queue is full or the wait was too
        long."""
        await self._enter(count)
        self.num_running += count
        try:
            yield
        finally:
            self.num_running -= count
            self._release(count)

    def _release(self, count: int) -> None:
        for _ in range(count):
            self._slots.release()

    async def _acquire(self, count: int) -> None:
        if count == 1:
            await self._slots.acquire()
            return
        num_held = 0
        try:
            async with self._gathering:  # two that gather at once could each hold what the other lacks
                while num_held < count:
                    await self._slots.acquire()
                    num_held += 1
        except BaseException:
            self._release(num_held)
            raise

    async def _enter(self, count: int) -> None:
        is_full = self._slots.locked() or self.max_running - self.num_running < count
        if is_full and self.num_waiting >= self._max_waiting:
            raise Overloaded("all slots are taken and the queue is full; try again later", retry_after_s=1.0)
        self.num_waiting += 1
        try:
            async with asyncio.timeout(self._max_wait_s if is_full else None):
                await self._acquire(count)
        except TimeoutError as error:
            raise Overloaded(
                f"no slot became free within {self._max_wait_s:g} s; try again later", retry_after_s=self._max_wait_s
            ) from error
        finally:
            self.num_waiting -= 1
