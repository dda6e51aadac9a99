"""Answers on their way out, and where verifiers are found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from specgrove_drafter.answers import Decline, DeclineReason
from specgrove_drafter.discovery import Discovery
from specgrove_drafter.outbox import Outbox


def decline(key: int, base_len: int = 1) -> Decline:
    return Decline(key, base_len, DeclineReason.NOTHING_TO_PROPOSE)


async def test_a_newer_answer_replaces_the_one_not_sent() -> None:
    outbox = Outbox(8)
    outbox.put(decline(1, 5))
    outbox.put(decline(2, 5))
    outbox.put(decline(1, 6))
    assert [await outbox.get(), await outbox.get()] == [decline(2, 5), decline(1, 6)]


async def test_an_outbox_is_bounded_and_drops_the_oldest() -> None:
    outbox = Outbox(2)
    for key in range(5):
        outbox.put(decline(key))
    assert [(await outbox.get()).session_key for _ in range(len(outbox))] == [3, 4]


async def test_get_waits_for_an_answer() -> None:
    outbox = Outbox(2)
    waiting = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    outbox.put(decline(3))
    assert (await waiting).session_key == 3


class Book:
    def __init__(self) -> None:
        self.addresses: set[str] = set()

    def update(self, addresses: Sequence[str]) -> None:
        self.addresses = set(addresses)


async def until_known(book: Book, addresses: set[str]) -> None:
    async with asyncio.timeout(5):
        while book.addresses != addresses:
            await asyncio.sleep(0.01)


async def test_named_verifiers_are_known_without_redis() -> None:
    book = Book()
    discovery = Discovery(["a:1"], None, book)
    await discovery.start()
    assert book.addresses == {"a:1"}
    await discovery.stop()
