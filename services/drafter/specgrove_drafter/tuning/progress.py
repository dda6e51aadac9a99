"""Progress lines: the stage, what it does, its rate and when it will be done."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field


def say(stage: str, message: str) -> None:
    """One line on standard error: standard output stays free for results."""
    print(f"{time.strftime('%H:%M:%S')} [{stage}] {message}", file=sys.stderr, flush=True)


@dataclass(slots=True)
class Meter:
    """Rate and remaining time of counted work; `done` may start above 0 when a run resumes."""

    total: int
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    done_at_start: int = 0

    def __post_init__(self) -> None:
        self.done_at_start = self.done

    def advance(self, count: int) -> None:
        self.done += count

    def describe(self, unit: str) -> str:
        """For example `21,504 of 500,000 tokens, 203 tokens/s, 39 min left`."""
        elapsed = max(time.monotonic() - self.started, 1e-9)
        rate = (self.done - self.done_at_start) / elapsed
        left = max(self.total - self.done, 0) / rate if rate > 0 else float("inf")
        remaining = f"{left / 60:.0f} min left" if left != float("inf") else "no estimate yet"
        return f"{self.done:,} of {self.total:,} {unit}, {rate:,.0f} {unit}/s, {remaining}"
