"""How long to wait before dialling again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Exponential pauses with jitter: each is between half of and the whole `first_s * 2**n`, at most `max_s`."""

    first_s: float = 0.1
    max_s: float = 1.0  # so that a verifier that is back is in use within two seconds
    generator: random.Random = field(default_factory=random.Random)
    num_failures: int = 0

    def next_pause_s(self) -> float:
        longest = min(self.max_s, self.first_s * 2 ** min(self.num_failures, 30))
        self.num_failures += 1
        return longest * self.generator.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.num_failures = 0
