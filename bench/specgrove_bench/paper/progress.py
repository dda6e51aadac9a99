"""The work of a run as a list of tasks, and what the user hears of it while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Tick = Callable[[float], None]  # hears the share of the task that is done, 0 to 1
Say = Callable[[str], None]
_SAY_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement: its name, what it will probably take, and the doing."""

    title: str
    estimate_s: float
    run: Callable[[Tick], None]


class Progress:
    """Runs tasks and says which one, and how much time is left, by the estimates and by how they came true so far."""

    def __init__(self, estimate_s: float, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._total_s = estimate_s
        self._say = say
        self._clock = clock
        self._began_s = clock()
        self._done_s = 0.0  # estimated seconds of the tasks that are done

    def run(self, tasks: Sequence[Task], batch_name: str) -> None:
        for place, task in enumerate(tasks, start=1):
            began_s = self._clock()
            name = f"{batch_name}, {place} of {len(tasks)}: {task.title}"
            self._say(f"{name}; {self._left()} left")
            task.run(self._ticker(name, task))
            self._done_s += task.estimate_s
            self._say(f"    {self._clock() - began_s:.0f} s")

    def _ticker(self, name: str, task: Task) -> Tick:
        last_s = self._clock()

        def tick(share: float) -> None:
            nonlocal last_s
            if self._clock() - last_s >= _SAY_EVERY_S:
                last_s = self._clock()
                self._say(f"    {share:.0%}; {self._left(share * task.estimate_s)} left")

        return tick

    def _left(self, under_way_s: float = 0.0) -> str:
        done_s = self._done_s + under_way_s
        elapsed_s = self._clock() - self._began_s
        # The estimates' error shows once a twentieth is done; before, they are all there is.
        pace = elapsed_s / done_s if done_s > 0.05 * self._total_s else 1.0
        return in_words(pace * max(self._total_s - done_s, 0.0))


def in_words(seconds: float) -> str:
    """`40 s` or `7 min`."""
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"
