"""The calls that a server is working on, and how they end when it stops."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from enum import Enum, auto


class CallKind(Enum):
    """What a stopping server does about a call."""

    FINITE = auto()  # unary calls and server streams: waited for, then cut
    OPEN_ENDED = auto()  # bidirectional streams last as long as their peers: not waited for, cut at the end
    WATCH = auto()  # health watches: not waited for; they end by themselves when health closes


@dataclass(slots=True, eq=False)
class ActiveCall:
    """One call in progress. Only counted ones weigh against the server's limit."""

    method: str
    task: asyncio.Task[object]
    kind: CallKind
    is_counted: bool
    started_s: float = field(default_factory=time.monotonic)
    is_cut: bool = False

    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s


class ActiveCalls:
    """A set of calls that can be waited for and cut."""

    def __init__(self) -> None:
        self._calls: set[ActiveCall] = set()
        self._changed = asyncio.Event()

    @property
    def num_counted(self) -> int:
        return sum(call.is_counted for call in self._calls)

    def enter(self, call: ActiveCall) -> None:
        self._calls.add(call)

    def leave(self, call: ActiveCall) -> None:
        self._calls.discard(call)
        self._changed.set()

    async def drained(self, kinds: frozenset[CallKind], timeout_s: float) -> bool:
        """True as soon as no call of `kinds` is left, False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(call.kind in kinds for call in self._calls):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def cut(self) -> int:
        """Cancels every handler but the watches', so that each client learns why. Returns how many were finite."""
        cut = [call for call in self._calls if call.kind is not CallKind.WATCH]
        for call in cut:
            call.is_cut = True
            call.task.cancel()
        return sum(call.kind is CallKind.FINITE for call in cut)
