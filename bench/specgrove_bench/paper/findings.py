"""Everything a run has found, before it is put into tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from specgrove_bench.paper.cost import Costs
from specgrove_bench.paper.counts import ByCategory, StepCounts, Success, by_category_json
from specgrove_bench.paper.ways import Way


@dataclass(frozen=True, slots=True, order=True)
class SuccessKey:
    """Children of one SSM at one depth (1 = below the root)."""

    ssm: str
    way: Way
    depth: int = 1


@dataclass(frozen=True, slots=True, order=True)
class WidthKey:
    """Trees <1,1,k,1,1,1,1,1> of one SSM."""

    ssm: str
    way: Way
    width: int


@dataclass(frozen=True, slots=True, order=True)
class LineupKey:
    """Trees of some members together, for one table."""

    table: str
    name: str
    way: Way


@dataclass(slots=True)
class Findings:
    """Sums by category under the keys that were measured."""

    ssm_names: tuple[str, ...] = ()
    costs: Costs | None = None
    success: dict[SuccessKey, ByCategory[Success]] = field(default_factory=dict)
    widths: dict[WidthKey, ByCategory[StepCounts]] = field(default_factory=dict)
    lineups: dict[LineupKey, ByCategory[StepCounts]] = field(default_factory=dict)
    member_names: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)  # by (table, lineup)

    def add_success(self, key: SuccessKey, category: str, part: Success) -> None:
        self.success.setdefault(key, ByCategory()).add(category, part)

    def add_width(self, key: WidthKey, category: str, part: StepCounts) -> None:
        self.widths.setdefault(key, ByCategory()).add(category, part)

    def add_lineup(self, key: LineupKey, category: str, part: StepCounts) -> None:
        self.lineups.setdefault(key, ByCategory()).add(category, part)

    def success_rates(self, key: SuccessKey, category: str | None = None) -> tuple[float | None, ...] | None:
        """Shares by number of children, in one category or over all; None where nothing was measured."""
        sums = self.success.get(key)
        part = None if sums is None else sums.total() if category is None else sums.get(category)
        return None if part is None else part.rates

    def tokens_per_step(self, key: WidthKey | LineupKey, category: str | None = None) -> float | None:
        """Mean accepted length in one category or over all; None where nothing was measured."""
        sums = self.widths.get(key) if isinstance(key, WidthKey) else self.lineups.get(key)
        part = None if sums is None else sums.total() if category is None else sums.get(category)
        return None if part is None else part.tokens_per_step

    def categories(self) -> tuple[str, ...]:
        """Every category that anything was measured in."""
        found = {name for sums in self.success.values() for name, _ in sums.items()}
        found |= {name for kept in (self.widths, self.lineups) for sums in kept.values() for name, _ in sums.items()}
        return tuple(sorted(found))

    def to_json(self) -> dict[str, object]:
        return {
            "ssms": self.ssm_names,
            "costs": self.costs.to_json() if self.costs else None,
            "success": [
                {"ssm": key.ssm, "way": key.way, "depth": key.depth, "by_category": by_category_json(sums)}
                for key, sums in sorted(self.success.items())
            ],
            "widths": [
                {"ssm": key.ssm, "way": key.way, "width": key.width, "by_category": by_category_json(sums)}
                for key, sums in sorted(self.widths.items())
            ],
            "lineups": [
                {
                    "table": key.table,
                    "lineup": key.name,
                    "way": key.way,
                    "members": self.member_names.get((key.table, key.name), ()),
                    "by_category": by_category_json(sums),
                }
                for key, sums in sorted(self.lineups.items())
            ],
        }
