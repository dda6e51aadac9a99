"""What a step of the target costs by its number of rows: measured at start, kept on disk, moved by every step."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)

# Matrix kernels take rows in tiles (six in fbgemm's fp16 kernel), so the curve has steps: measure around them.
MEASURED_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
_MANY_ROWS = 64  # sizes above are measured twice only: they take long, and noise matters less
_WEIGHT = 0.05
_LOCAL_WEIGHT = 0.3
_MOST_SHIFT = 0.2  # of the whole curve's gap that one step speaks for
_CHECKED_ROWS, _MOST_MISFIT = 12, 0.25  # where points from disk are tried, and by how much they may be off
_LEAST_RATIO, _MOST_RATIO = 0.2, 3.0  # a single stalled step is not the machine


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
        times: dict[int, list[float]] = {rows: [] for rows in sizes}
        for turn in range(repeats):
            for rows in sizes:
                if rows <= _MANY_ROWS or turn < 2:
                    times[rows].append(run_step(rows))
        return cls([(rows, min(seen)) for rows, seen in times.items()])

    @classmethod
    def resumed(
        cls, points: Sequence[tuple[int, float]], run_step: Callable[[int], float], *, repeats: int = 5
    ) -> CostCurve | None:
        """`points` of an earlier start, moved as a whole to how fast a step of one row is now; None where a larger
        step does not fit them, for then they were measured in a bad moment, or on something else."""
        curve = cls(points)
        rows = max(rows for rows, _ in points if rows <= _CHECKED_ROWS)
        run_step(points[0][0])
        few_s, many_s = (min(run_step(count) for _ in range(repeats)) for count in (points[0][0], rows))
        curve._scale = few_s / points[0][1]
        return curve if abs(many_s / curve.seconds(rows) - 1.0) < _MOST_MISFIT else None

    @property
    def points(self) -> dict[int, float]:
        """Seconds by rows, as they stand now."""
        return {rows: self._scale * seconds for rows, seconds in zip(self._rows, self._seconds, strict=True)}

    def seconds(self, rows: float) -> float:
        """Of a step of `rows` rows; a mean over steps need not be whole."""
        return self._scale * sum(share * self._seconds[place] for place, share in self._weights(rows))

    def observe(self, rows: int, seconds: float) -> None:
        """Let a step that took `seconds` move the curve."""
        excess = min(max(seconds / self.seconds(rows), _LEAST_RATIO), _MOST_RATIO) - 1.0
        # A machine that got busier shows at every size; a large gap at one size is that point's own.
        self._scale *= 1.0 + _WEIGHT * min(max(excess, -_MOST_SHIFT), _MOST_SHIFT)
        for place, share in self._weights(rows):
            self._seconds[place] *= 1.0 + _LOCAL_WEIGHT * min(share, 1.0) * excess
            if share == 1.0:  # seen at this very size: fewer rows cost no more
                here = self._seconds[place]
                self._seconds[:place] = [min(seconds, here) for seconds in self._seconds[:place]]

    def _weights(self, rows: float) -> list[tuple[int, float]]:
        """The measured points next to `rows` and the share of each."""
        place = bisect_left(self._rows, rows)
        if place == 0:
            return [(0, 1.0)]
        if place == len(self._rows):  # beyond the last point: at its cost per row
            return [(place - 1, rows / self._rows[-1])]
        low, high = self._rows[place - 1], self._rows[place]
        share = (rows - low) / (high - low)
        return [(place - 1, 1.0 - share), (place, share)]


@dataclass(frozen=True, slots=True)
class CurveStore:
    """Curves on disk, a small JSON file each, by what they were measured on. What cannot be read or written is not
    there: a pod without a writable disk measures at every start."""

    folder: Path

    def load(self, made_on: Sequence[object]) -> list[tuple[int, float]] | None:
        """The points measured on `made_on` (hardware, model, threads, ...), or None."""
        try:
            points = [(int(rows), float(s)) for rows, s in json.loads(self._path(made_on).read_text())["points"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        are_usable = all(rows > 0 and s > 0 and math.isfinite(s) for rows, s in points)
        return points if points and are_usable and [rows for rows, _ in points] == sorted(dict(points)) else None

    def save(self, made_on: Sequence[object], curve: CostCurve) -> None:
        path = self._path(made_on)
        content = {"made_on": [str(part) for part in made_on], "points": list(curve.points.items())}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(".partial")
            beside.write_text(json.dumps(content))
            beside.replace(path)
        except OSError as error:
            _log.info("the cost curve is not kept: %s", error)

    def _path(self, made_on: Sequence[object]) -> Path:
        digest = hashlib.sha256("\n".join(map(str, made_on)).encode()).hexdigest()[:16]
        return self.folder / f"{digest}.json"
