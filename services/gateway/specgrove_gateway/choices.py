"""Several answers to one request (`n`): as many generations, merged into one stream of events with their indices.

    request ── choice 0 ──▶ first event ──▶ choices 1, 2, ... start: the prompt is read, the same verifier has it cached
                  │                             │
                  └──────────────── queue ◀─────┘ ──▶ (index, event)        one fails: all end, with its error

A single choice passes through untouched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from specgrove.errors import InvalidInput
from specgrove_gateway.admission import Admission
from specgrove_gateway.generation import ChoiceEvent, Echo, Finished, GenerationRequest
from specgrove_gateway.generator import Generator

_Queue = asyncio.Queue[ChoiceEvent | BaseException]


class ChoiceGenerator:
    """Generates all choices of a request. Closing the iterator, or cancelling its task, cancels every one at once."""

    def __init__(self, generator: Generator, admission: Admission) -> None:
        self._generator = generator
        self._admission = admission

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[ChoiceEvent, None]:
        """Each choice's events, its Finished last. Raises what the first choice to fail raises; InvalidInput for more
        choices than ever run at once."""
        if request.num_choices == 1:
            async with aclosing(self._generator.generate(request)) as events:
                async for event in events:
                    yield ChoiceEvent(0, event)
            return
        if request.num_choices > self._admission.max_running:
            raise InvalidInput(
                f"n is {request.num_choices}; at most {self._admission.max_running} generations run at once here",
                field="n",
            )
        last: ChoiceEvent | None = None
        async with self._admission.slot(request.num_choices), aclosing(self._merged(request)) as merged:
            num_finished = 0
            async for choice in merged:
                num_finished += isinstance(choice.event, Finished)
                if num_finished == request.num_choices:
                    last = choice
                    break
                yield choice
        # As with one choice: the slots are free and the calls are over before the last word goes out.
        if last is None:
            raise RuntimeError("a choice ended without a finish reason")
        yield last

    async def _merged(self, request: GenerationRequest) -> AsyncGenerator[ChoiceEvent, None]:
        queue: _Queue = asyncio.Queue(request.num_choices)  # who reads slowly holds the generations back
        pumps = [asyncio.create_task(self._pump(request.choice(0), queue))]
        try:
            num_finished = 0
            while num_finished < request.num_choices:
                arrived = await queue.get()
                if isinstance(arrived, BaseException):
                    raise arrived
                if len(pumps) == 1:
                    others = range(1, request.num_choices)
                    pumps += [asyncio.create_task(self._pump(request.choice(index), queue)) for index in others]
                num_finished += isinstance(arrived.event, Finished)
                yield arrived
                if isinstance(arrived.event, Echo):  # the prompt was scored once, and stands before each choice
                    for index in range(1, request.num_choices):
                        yield ChoiceEvent(index, arrived.event)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, request: GenerationRequest, queue: _Queue) -> None:
        try:
            async with aclosing(self._generator.generate(request, has_slot=True)) as events:
                async for event in events:
                    await queue.put(ChoiceEvent(request.choice_index, event))
        except Exception as error:
            await queue.put(error)
