"""Load on one client: closed-loop (N clients, each sends again when it is answered) and open-loop (arrivals at a rate).

The clients are tasks of one event loop in this process. They do nothing but note when chunks come, but they take part
of the cores they measure, every mode alike.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from specgrove_bench.request import Answer, Ask, AskFailed, Record


class Client(Protocol):
    """Somebody who answers requests, many at a time unless it says otherwise elsewhere."""

    async def ask(self, ask: Ask) -> Answer:
        """The whole answer. Raises `AskFailed`."""
        ...


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What a load saw, in the order in which the requests were due."""

    records: tuple[Record, ...]
    duration_s: float  # from the first request to the last answer
    full_load_s: float  # until the first client had nothing more to send; in an open loop until the last arrival

    @property
    def num_tokens(self) -> int:
        return sum(record.answer.num_tokens for record in self.records)

    @property
    def full_load_tokens_per_s(self) -> float | None:
        """Tokens that came while every client was busy, per second: without the tail of a load that runs dry."""
        num_tokens = sum(
            chunk.num_tokens
            for record in self.records
            for chunk in record.answer.chunks
            if record.sent_s + chunk.at_s <= self.full_load_s
        )
        return num_tokens / self.full_load_s if self.full_load_s > 0 and num_tokens else None


async def closed_loop(client: Client, asks: Sequence[Ask], concurrency: int) -> LoadRun:
    """Answer all `asks`, in order, `concurrency` at any moment for as long as there are so many."""
    began = time.perf_counter()
    records: list[Record | None] = [None] * len(asks)
    places = iter(range(len(asks)))
    ran_dry: list[float] = []

    async def keep_asking() -> None:
        for place in places:
            records[place] = await _timed(client, asks[place], began, due_s=None)
        ran_dry.append(time.perf_counter() - began)

    await asyncio.gather(*(keep_asking() for _ in range(min(concurrency, len(asks)))))
    return _load_run(records, time.perf_counter() - began, min(ran_dry, default=0.0))


async def open_loop(client: Client, asks: Sequence[Ask], arrivals_s: Sequence[float]) -> LoadRun:
    """Send every request when it is due, however many are unanswered."""
    began = time.perf_counter()

    async def ask_when_due(ask: Ask, due_s: float) -> Record:
        await asyncio.sleep(max(0.0, began + due_s - time.perf_counter()))
        return await _timed(client, ask, began, due_s)

    records = await asyncio.gather(*(ask_when_due(ask, due) for ask, due in zip(asks, arrivals_s, strict=True)))
    return _load_run(records, time.perf_counter() - began, max(arrivals_s, default=0.0))


def poisson_arrivals(rate: float, count: int, seed: int) -> tuple[float, ...]:
    """`count` moments, the first at 0, with exponential gaps of mean `1 / rate` seconds; the same for the same seed."""
    gaps = random.Random(seed)
    return tuple(accumulate((gaps.expovariate(rate) for _ in range(count - 1)), initial=0.0))


async def _timed(client: Client, ask: Ask, began: float, due_s: float | None) -> Record:
    sent_s = time.perf_counter() - began
    try:
        answer = await client.ask(ask)
    except AskFailed as error:
        answer = Answer((), error=str(error))
    if not answer.error and not answer.chunks:
        answer = Answer((), error="an answer without a token")
    return Record(ask.prompt, ask.category, sent_s, 0.0 if due_s is None else max(0.0, sent_s - due_s), answer)


def _load_run(records: Sequence[Record | None], duration_s: float, full_load_s: float) -> LoadRun:
    return LoadRun(tuple(record for record in records if record is not None), duration_s, full_load_s)
