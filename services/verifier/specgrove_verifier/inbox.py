"""What the other threads tell the engine: a bounded inbox that wakes it.

Commands (submit, cancel, attach, detach) are as many as there are sessions and drafters and are never dropped. Drafts
are disposable: of each (drafter, session) only the newest is kept, so the inbox cannot grow with a flood of them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from specgrove.draft import Draft


@dataclass(frozen=True, slots=True)
class DraftArrival:
    """A draft and when it came (monotonic seconds)."""

    drafter: int
    draft: Draft
    arrived_s: float


class EngineInbox:
    """Thread-safe. `take` empties it; `wait` sleeps until something comes."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._drafts: dict[tuple[int, int], DraftArrival] = {}
        self.num_overwritten = 0

    def command(self, run: Callable[[], None]) -> None:
        """Have `run` called on the engine's thread before its next step."""
        with self._condition:
            self._commands.append(run)
            self._condition.notify()

    def draft(self, drafter: int, draft: Draft) -> None:
        """Leave a draft; one of the same drafter for the same session that was not read yet gives way."""
        arrival = DraftArrival(drafter, draft, time.monotonic())
        with self._condition:
            place = (drafter, draft.session_key)
            waiting = self._drafts.get(place)
            if waiting is not None:
                self.num_overwritten += 1
                if waiting.draft.base_len > draft.base_len:
                    return  # reordered: the newer base wins
            self._drafts[place] = arrival
            self._condition.notify()

    def take(self) -> tuple[list[Callable[[], None]], list[DraftArrival]]:
        with self._condition:
            commands, drafts = list(self._commands), list(self._drafts.values())
            self._commands.clear()
            self._drafts.clear()
        return commands, drafts

    def wait(self, timeout_s: float | None) -> None:
        """Return when something is there or `timeout_s` has passed."""
        with self._condition:
            self._condition.wait_for(lambda: bool(self._commands or self._drafts), timeout_s)
