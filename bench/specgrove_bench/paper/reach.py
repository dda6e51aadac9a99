"""The marks that this pair is held to, with what a run found: measured / wanted / reached."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from specgrove_bench.paper.counts import MAX_WIDTH
from specgrove_bench.paper.findings import Findings, SuccessKey, WidthKey
from specgrove_bench.paper.lineups import EVERYONE
from specgrove_bench.paper.ways import Way


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark; `is_ceiling` marks are to be stayed under."""

    what: str
    measured: float
    wanted: float
    is_ceiling: bool = False

    @property
    def is_reached(self) -> bool:
        return self.measured <= self.wanted if self.is_ceiling else self.measured >= self.wanted

    def line(self) -> str:
        relation = "at most" if self.is_ceiling else "at least"
        verdict = "reached" if self.is_reached else "not reached"
        return f"* {self.what}: {self.measured:.2f}, wanted {relation} {self.wanted:.2f}: {verdict}"

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "is_reached": self.is_reached}


def marks(findings: Findings) -> list[Mark]:
    """The marks for which everything was measured."""
    return [*_success_marks(findings), *_length_marks(findings), *_rule_marks(findings), *_cost_marks(findings)]


def _success_marks(findings: Findings) -> list[Mark]:
    rates = [
        row
        for name in findings.ssm_names
        if (row := findings.success_rates(SuccessKey(name, Way.GREEDY))) and row[0] is not None
    ]
    if not rates:
        return []
    best = max(rates, key=lambda row: row[0] or 0.0)
    return [
        Mark("best SSM, the target's token first, greedy, depth 1", best[0] or 0.0, 0.50),
        Mark(f"best SSM, the target's token among the first {MAX_WIDTH}, greedy, depth 1", best[-1] or 0.0, 0.75),
    ]


def _length_marks(findings: Findings) -> list[Mark]:
    lengths = {
        key.name: findings.tokens_per_step(key) or 0.0
        for key in findings.lineups
        if key.table == "e" and key.way is Way.GREEDY
    }
    singles = [length for name, length in lengths.items() if len(findings.member_names["e", name]) == 1]
    ssms = [lengths[name] for name in findings.ssm_names if name in lengths]
    found = [Mark("best single SSM, tokens per step, greedy", max(ssms), 2.4)] if ssms else []
    together = [length for name, length in lengths.items() if len(findings.member_names["e", name]) > 1]
    if together and singles:
        everyone = lengths.get(EVERYONE, max(together))
        found.append(Mark("pool with the model-free member, tokens per step, greedy", everyone, 2.7))
        found.append(Mark("that pool over the best single member", everyone / max(singles), 1.0))
    return found


def _rule_marks(findings: Findings) -> list[Mark]:
    if not findings.ssm_names:
        return []
    lead = findings.ssm_names[0]
    ways = (Way.COUPLED, Way.MSS, Way.NAIVE_SAMPLED)
    coupled, mss, naive = (findings.tokens_per_step(WidthKey(lead, way, MAX_WIDTH)) for way in ways)
    found = []
    if coupled and mss:
        found.append(Mark("coupled over mss, tokens per step at width 5", coupled / mss, 0.9))
    if mss and naive:
        found.append(Mark("mss over naive with sampled children, tokens per step at width 5", mss / naive, 1.2))
    return found


def _cost_marks(findings: Findings) -> list[Mark]:
    costs = findings.costs
    if costs is None:
        return []
    return [
        Mark(f"one level of {name} over one plain target step", level[0] / costs.target_step_s[0], 0.1, is_ceiling=True)
        for name, level in costs.ssm_level_s.items()
    ]
