"""How much is open here, running or waiting, and what is over the limit: refused before any work is done for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from specgrove.errors import Overloaded


class RefusalReason(StrEnum):
    """Why a generation was not taken; a label of a metric."""

    SESSIONS = "sessions"
    TOKENS = "tokens"
    WAITING_TIME = "waiting_time"


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """What may be open at once."""

    max_generations: int  # running and waiting
    max_tokens: int  # that they came with: prompts and the output of earlier owners


class OpenLoad:
    """Counts what is open. Lives on the event loop; `on_refused` hears of every refusal."""

    def __init__(self, limits: LoadLimits, on_refused: Callable[[RefusalReason], None] = lambda reason: None) -> None:
        self._limits = limits
        self._on_refused = on_refused
        self.num_generations = 0
        self.num_tokens = 0

    def check(self, num_tokens: int) -> None:
        """Raise `Overloaded` when one more generation of so many tokens is too much."""
        limits = self._limits
        if self.num_generations >= limits.max_generations:
            self._on_refused(RefusalReason.SESSIONS)
            raise Overloaded(
                f"{limits.max_generations} generations are running or waiting here; try another verifier or later"
            )
        if self.num_tokens + num_tokens > limits.max_tokens:
            self._on_refused(RefusalReason.TOKENS)
            raise Overloaded(
                f"{self.num_tokens} tokens are running or waiting here and {num_tokens} more are over the limit of "
                f"{limits.max_tokens}; try another verifier or later"
            )

    def enter(self, num_tokens: int) -> None:
        self.num_generations += 1
        self.num_tokens += num_tokens

    def leave(self, num_tokens: int) -> None:
        self.num_generations -= 1
        self.num_tokens -= num_tokens
