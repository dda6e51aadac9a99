"""What the other threads tell the engine: a bounded inbox that wakes it.

Commands (submit, cancel, attach, detach) are as many as there are sessions and drafters and are never dropped. What
drafters send is disposable: of each (drafter, session) only the newest answer is kept, and past `MAX_ANSWERS` of them
(a drafter that invents sessions) new ones are dropped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from specgrove.draft import Draft

MAX_ANSWERS = 16_384


@dataclass(frozen=True, slots=True)
class Refusal:
    """A drafter will send no tree for a base."""

    session_key: int
    base_len: int
    lost_place: bool
    no_room: bool


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a drafter answered and when it came (monotonic seconds)."""

    drafter: int
    answer: Draft | Refusal
    arrived_s: float


class EngineInbox:
    """Thread-safe. `take` empties it; `wait` sleeps until something comes."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._answers: dict[tuple[int, int], Arrival] = {}

    def command(self, run: Callable[[], None]) -> None:
        """Have `run` called on the engine's thread before its next step."""
        with self._condition:
            self._commands.append(run)
            self._condition.notify()

    def answer(self, drafter: int, answer: Draft | Refusal) -> None:
        """Leave an answer; one of the same drafter for the same session that was not read yet gives way."""
        arrival = Arrival(drafter, answer, time.monotonic())
        with self._condition:
            place = (drafter, answer.session_key)
            waiting = self._answers.get(place)
            if waiting is not None and waiting.answer.base_len > answer.base_len:
                return  # reordered: the newer base wins
            if waiting is None and len(self._answers) >= MAX_ANSWERS:
                return
            self._answers[place] = arrival
            self._condition.notify()

    def take(self) -> tuple[list[Callable[[], None]], list[Arrival]]:
        with self._condition:
            commands, answers = list(self._commands), list(self._answers.values())
            self._commands.clear()
            self._answers.clear()
        return commands, answers

    def wait(self, timeout_s: float | None) -> None:
        """Return when something is there or `timeout_s` has passed."""
        with self._condition:
            self._condition.wait_for(lambda: bool(self._commands or self._answers), timeout_s)
