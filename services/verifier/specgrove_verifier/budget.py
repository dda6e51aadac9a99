"""How many draft nodes a session may have in the next step: what commits most tokens per second.

    tokens per second (n nodes each, S sessions) = S * (1 + accepted(n)) / (T(S * (1 + n)) + draft wait if n > 0)

T is the verifier's own cost curve, measured at start and kept current; accepted(n) a concave law scaled by what is
seen; n = 0 is speculation off. `fixed` grants the limits always (for tests and comparisons).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from specgrove_verifier.mailbox import NO_DRAFT, DraftBudget

# Matrix kernels take rows in tiles (six in fbgemm's fp16 kernel), so the curve has steps: measure around them.
MEASURED_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64)
_CANDIDATE_NODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 16, 17, 23, 24, 32, 48, 64)
# Before anything is measured: the first node is accepted in 45% of the steps, each further one adds 72% of the one
# before. Only the shape matters; the scale follows the measured acceptance.
_FIRST_NODE, _DECAY = 0.45, 0.72
_WEIGHT = 0.05
_LOCAL_WEIGHT = 0.3
_LEAST_RATIO, _MOST_RATIO = 0.2, 3.0  # a single stalled step is not the machine
_PROBE_INTERVAL = 64  # steps without drafts between two looks at whether they pay again
_PROBE_NODES = 4
_PROBE_STEPS = 3


class CostCurve:
    """Seconds of a step by its rows: measured points, straight lines between, kept current by what steps take.

    A step moves all points a little (the machine got busier) and those next to its size a lot (that point was wrong),
    so a curve that was measured in a bad moment heals.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        self._rows = [rows for rows, _ in points]
        # A step does not get cheaper with more rows; a dip is noise.
        self._seconds: list[float] = []
        for _, seconds in points:
            self._seconds.append(max(seconds, self._seconds[-1] if self._seconds else 0.0))
        self._scale = 1.0

    @classmethod
    def measure(cls, run_step: Callable[[int], float], *, max_rows: int, repeats: int = 5) -> CostCurve:
        """Time `run_step(rows)`, which returns seconds, at each size up to `max_rows`.

        Size after size, `repeats` times over, and the least of each counts: at start the machine is busy with other
        things, which only ever add time, and a bad moment should not spoil one size alone.
        """
        run_step(1)
        sizes = [rows for rows in MEASURED_ROWS if rows <= max_rows]
        passes = [[run_step(rows) for rows in sizes] for _ in range(repeats)]
        return cls([(rows, min(times)) for rows, *times in zip(sizes, *passes, strict=True)])

    @property
    def points(self) -> dict[int, float]:
        """Seconds by rows, as they stand now."""
        return {rows: self._scale * seconds for rows, seconds in zip(self._rows, self._seconds, strict=True)}

    def seconds(self, rows: int) -> float:
        return self._scale * sum(share * self._seconds[place] for place, share in self._weights(rows))

    def observe(self, rows: int, seconds: float) -> None:
        """Let a step that took `seconds` move the curve."""
        excess = min(max(seconds / self.seconds(rows), _LEAST_RATIO), _MOST_RATIO) - 1.0
        self._scale *= 1.0 + _WEIGHT * excess
        for place, share in self._weights(rows):
            self._seconds[place] *= 1.0 + _LOCAL_WEIGHT * min(share, 1.0) * excess

    def _weights(self, rows: int) -> list[tuple[int, float]]:
        """The measured points next to `rows` and the share of each."""
        place = bisect_left(self._rows, rows)
        if place == 0:
            return [(0, 1.0)]
        if place == len(self._rows):  # beyond the last point: at its cost per row
            return [(place - 1, rows / self._rows[-1])]
        low, high = self._rows[place - 1], self._rows[place]
        share = (rows - low) / (high - low)
        return [(place - 1, 1.0 - share), (place, share)]


class FixedBudget:
    """The limits, whatever they cost."""

    def __init__(self, limits: DraftBudget) -> None:
        self.limits = limits

    def grant(self, num_sessions: int, draft_wait_s: float) -> DraftBudget:
        return self.limits

    def observe_tree(self, num_nodes: int, num_accepted: int) -> None:
        pass

    def observe_step(self, rows: int, seconds: float) -> None:
        pass


class MeasuredBudget:
    """The number of nodes with the best expected rate, 0 when plain decoding is expected to be faster."""

    def __init__(self, limits: DraftBudget, curve: CostCurve) -> None:
        self.limits = limits
        self._curve = curve
        self._acceptance_scale = 1.0
        self._steps_without = 0
        self._probe_steps_left = 0

    def grant(self, num_sessions: int, draft_wait_s: float) -> DraftBudget:
        """The budget of each of `num_sessions` sessions that decode together, a draft taking `draft_wait_s`."""
        best = max(
            (nodes for nodes in _CANDIDATE_NODES if nodes <= self.limits.max_nodes),
            key=lambda nodes: self._rate(nodes, num_sessions, draft_wait_s),
        )
        if best == 0:
            best = self._probe()
        else:
            self._steps_without = 0
        return DraftBudget(best, self.limits.max_depth) if best else NO_DRAFT

    def observe_tree(self, num_nodes: int, num_accepted: int) -> None:
        """A verified tree of `num_nodes` draft nodes had `num_accepted` accepted."""
        self._acceptance_scale += _WEIGHT * (num_accepted / _prior_accepted(num_nodes) - self._acceptance_scale)

    def observe_step(self, rows: int, seconds: float) -> None:
        self._curve.observe(rows, seconds)

    def _rate(self, nodes: int, num_sessions: int, draft_wait_s: float) -> float:
        accepted = self._acceptance_scale * _prior_accepted(nodes)
        seconds = self._curve.seconds(num_sessions * (1 + nodes)) + (draft_wait_s if nodes else 0.0)
        return num_sessions * (1 + accepted) / seconds

    def _probe(self) -> int:
        """Mostly 0; now and then a few small trees, so that better times are noticed."""
        if self._probe_steps_left:
            self._probe_steps_left -= 1
            return min(_PROBE_NODES, self.limits.max_nodes)
        self._steps_without += 1
        if self._steps_without >= _PROBE_INTERVAL:
            self._steps_without = 0
            self._probe_steps_left = _PROBE_STEPS
        return 0


Budget = FixedBudget | MeasuredBudget


def _prior_accepted(nodes: int) -> float:
    return _FIRST_NODE * (1 - _DECAY**nodes) / (1 - _DECAY)
