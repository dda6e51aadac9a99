"""Running totals of how generations came into the KV cache and out of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Placements:
    """Counted by the scheduler, shown by the metrics."""

    num_preemptions: int = 0
    num_queried_tokens: int = 0  # tokens of generations that got their first place
    num_hit_tokens: int = 0  # those of them whose keys and values were there already
