"""Percentiles and medians with their spread: what a run of few noisy numbers can honestly say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_NOTCH = 1.57  # McGill, Tukey and Larsen 1978: medians whose notches do not overlap differ at about the 95% level


def percentile(values: Sequence[float], percent: float) -> float:
    """The `percent`-th percentile, interpolated linearly between neighbours (numpy's default, so vLLM's too)."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The middle and the tail of many durations, in seconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles | None:
        """None for no values."""
        return cls(*(percentile(values, percent) for percent in (50, 95, 99))) if values else None


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its quartiles."""

    median: float
    q1: float
    q3: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None for no values."""
        if not values:
            return None
        return cls(percentile(values, 50), percentile(values, 25), percentile(values, 75), len(values))

    @property
    def notch(self) -> float:
        """How far the true median may be off to either side; 0 where there is only one value and nothing is known."""
        return _NOTCH * (self.q3 - self.q1) / math.sqrt(self.num)
