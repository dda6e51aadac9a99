"""Answers on their way to one verifier: the newest for each session, bounded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from specgrove_drafter.answers import Answer


class Outbox:
    """A coalescing queue on the event loop. A newer answer for a session replaces one that was not sent yet; when more
    than `max_answers` sessions wait, the oldest answer is dropped: the verifier goes on without it."""

    def __init__(self, max_answers: int) -> None:
        self._max_answers = max_answers
        self._answers: OrderedDict[int, Answer] = OrderedDict()  # by session key
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._answers)

    def put(self, answer: Answer) -> None:
        self._answers.pop(answer.session_key, None)
        self._answers[answer.session_key] = answer
        if len(self._answers) > self._max_answers:
            self._answers.popitem(last=False)
        self._filled.set()

    async def get(self) -> Answer:
        """The oldest answer, as soon as there is one."""
        while not self._answers:
            self._filled.clear()
            await self._filled.wait()
        return self._answers.popitem(last=False)[1]
