"""Who goes first: by arrival, moved by priority.

    rank = arrival + priority * ageing      seconds; the lower goes first

    ageing 10 s    arrived at 0 s with priority 2 ──▶ 20 s    goes before whatever comes after 20 s with priority 0

A generation's rank never changes, yet it ages: whoever waits is overtaken only by those that came soon after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from specgrove_verifier.generation import Generation

_MAX_HEAD_START_S = 600.0  # whatever the priority: nobody waits much longer than this for the sake of newcomers


@dataclass(frozen=True, slots=True)
class Ranking:
    """Orders generations. One level of priority is worth `ageing_s` seconds of waiting."""

    ageing_s: float = 10.0

    def rank(self, generation: Generation) -> tuple[float, int, int]:
        """Sorts first what goes first; the last in rank gives way when blocks run out."""
        priority = generation.request.priority
        moved_s = min(max(priority * self.ageing_s, -_MAX_HEAD_START_S), _MAX_HEAD_START_S)
        return (generation.arrived_s + moved_s, priority, generation.key)
