"""What a drafter is still to be told, on the event loop's side: bounded by its sessions, commits coalesced.

A stalled drafter cannot make it grow: for each session there is at most one opening, one commit (longer and longer) or
one closing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from specgrove_verifier.drafter_pool import CloseSession, CommitTokens, OpenSession, SessionUpdate


def coalesce(waiting: SessionUpdate | None, update: SessionUpdate) -> SessionUpdate:
    """The one update that says what `waiting` and then `update` said."""
    if isinstance(update, CommitTokens):
        if isinstance(waiting, OpenSession | CommitTokens):
            token_ids = waiting.token_ids + update.token_ids
            # Features are those of the last token: older ones, or none, must not be taken for them.
            return replace(waiting, token_ids=token_ids, budget=update.budget, features=update.features)
        if isinstance(waiting, CloseSession):
            return waiting
    return update


class Outbox:
    """The link to one drafter. `post` may be called from any thread; `take` waits on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, SessionUpdate] = {}
        self._has_news = asyncio.Event()

    def post(self, updates: Sequence[SessionUpdate]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._add, updates)

    async def take(self) -> list[SessionUpdate]:
        """Everything that waits, at least one update, oldest session first."""
        await self._has_news.wait()
        self._has_news.clear()
        updates = list(self._waiting.values())
        self._waiting.clear()
        return updates

    def _add(self, updates: Sequence[SessionUpdate]) -> None:
        for update in updates:
            self._waiting[update.session_key] = coalesce(self._waiting.get(update.session_key), update)
        self._has_news.set()
