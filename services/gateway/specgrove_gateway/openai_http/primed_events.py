"""An answer's events whose first one can be waited for before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from specgrove_gateway.generation import ChoiceEvent


class PrimedEvents:
    """An event stream whose first event is fetched by a task that outlives the waiting for it."""

    def __init__(self, events: AsyncGenerator[ChoiceEvent, None]) -> None:
        self._events = events
        self._first: asyncio.Task[ChoiceEvent] | None = None

    async def prime(self, timeout_s: float) -> None:
        """Wait for the first event, or `timeout_s`. Raises what the generation raises."""
        self._first = asyncio.ensure_future(_next(self._events))
        done, _ = await asyncio.wait({self._first}, timeout=timeout_s)
        if done:
            self._first.result()

    def __aiter__(self) -> PrimedEvents:
        return self

    async def __anext__(self) -> ChoiceEvent:
        if self._first is not None:
            first, self._first = self._first, None
            try:
                return await first
            except asyncio.CancelledError:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
                raise
        return await anext(self._events)

    async def aclose(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._events.aclose()


async def _next(events: AsyncGenerator[ChoiceEvent, None]) -> ChoiceEvent:
    return await anext(events)
