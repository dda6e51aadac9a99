"""What the project promises of speed, each beside what this run saw of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from specgrove_bench.measure import BlockRun
from specgrove_bench.modes import PLAIN
from specgrove_bench.plan import ClosedLoop
from specgrove_bench.ratios import Ratio, speedup_over, throughput_over
from specgrove_bench.stats import Spread
from specgrove_bench.step_profile import StepTimes
from specgrove_bench.warm_prefix import PrefixTrial, warm_share

Runs = dict[tuple[str, str], list[BlockRun]]
_SOLO = ClosedLoop(1).key


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    UNCLEAR = "within the noise"


@dataclass(frozen=True, slots=True)
class Check:
    """A promise: `spread` against `limit`, of which it must be `at_least` or at most."""

    name: str
    spread: Spread
    limit: float
    at_least: bool

    @property
    def verdict(self) -> Verdict:
        """By the median, and unclear where the limit lies within the median's notch."""
        if abs(self.spread.median - self.limit) < self.spread.notch:
            return Verdict.UNCLEAR
        is_met = self.spread.median >= self.limit if self.at_least else self.spread.median <= self.limit
        return Verdict.MET if is_met else Verdict.MISSED

    @property
    def ratio(self) -> Ratio:
        return Ratio(self.spread, self.at_least)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "verdict": str(self.verdict)}


def checks_of(runs: Runs, trials: Sequence[PrefixTrial], profile: Sequence[StepTimes]) -> list[Check]:
    """Every promise that this run has measured."""
    found = [
        _check("speculation switched off costs under 2 %: time per token, off / no drafter", 1.02, False,
               speedup_over(runs, _SOLO, "bare", PLAIN)),
        _check("TTFT with a warm prefix, warm / cold", 0.2, False, warm_share(trials)),
        _check("controller over off, time per token, 1 client", 1.5, True,
               speedup_over(runs, _SOLO, "controller", PLAIN)),
        _check("controller over transformers generate, 1 client", 5.0, True,
               speedup_over(runs, _SOLO, "controller", "transformers")),
        *_under_load(runs),
        *_against_vllm(runs),
        *_profile(profile),
    ]  # fmt: skip
    return [check for check in found if check is not None]


def _check(name: str, limit: float, at_least: bool, spread: Spread | None) -> Check | None:
    return Check(name, spread, limit, at_least) if spread is not None else None


def _under_load(runs: Runs) -> list[Check | None]:
    return [
        _check(f"controller over off, tokens a second, {load.concurrency} clients", 0.97, True,
               throughput_over(runs, load.key, "controller", PLAIN))
        for load in _closed_loads(runs)
        if load.concurrency >= 4
    ]  # fmt: skip


def _against_vllm(runs: Runs) -> list[Check | None]:
    return [
        _check(f"controller over {name}, tokens a second, {load.concurrency} clients", 1.0, True,
               throughput_over(runs, load.key, "controller", name))
        for load in _closed_loads(runs)
        for name in ("vllm", "vllm-bf16")
    ]  # fmt: skip


def _profile(profile: Sequence[StepTimes]) -> list[Check | None]:
    return [
        Check("a plain step over its bare matrix products", row.step_over_bare, 1.3, False)
        for row in profile
        if row.sessions == row.rows == 1
    ]


def _closed_loads(runs: Runs) -> list[ClosedLoop]:
    loads = {run.block.load for blocks in runs.values() for run in blocks}
    return sorted((load for load in loads if isinstance(load, ClosedLoop)), key=lambda load: load.concurrency)
