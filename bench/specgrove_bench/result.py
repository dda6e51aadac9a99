"""Everything a run found, and its JSON: figures first, then every single request on a line of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from specgrove_bench.checks import Check, checks_of
from specgrove_bench.contender import Contender
from specgrove_bench.exactness import Difference, differences
from specgrove_bench.figures import CellFigures, Goals, figures_of
from specgrove_bench.machine import Machine
from specgrove_bench.measure import BlockRun
from specgrove_bench.options import BenchOptions
from specgrove_bench.prompts import BenchPrompt
from specgrove_bench.ratios import Ratio, ratios_of
from specgrove_bench.step_profile import StepTimes
from specgrove_bench.warm_prefix import PrefixTrial

FORMAT = 2  # of the JSON; raised when an older one cannot be compared any more


@dataclass(slots=True)
class Measurements:
    """What a run gathers as it goes."""

    runs: list[BlockRun] = field(default_factory=list)
    trials: list[PrefixTrial] = field(default_factory=list)
    profile: list[StepTimes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """All figures of one bench run."""

    machine: Machine
    options: BenchOptions
    prompts: Sequence[BenchPrompt]
    titles: Mapping[str, str]  # by competitor, in the order of the report
    cells: Sequence[CellFigures]
    ratios: Mapping[str, Ratio]
    checks: Sequence[Check]
    differences: Sequence[Difference]
    seen: Measurements
    elapsed_s: float

    @property
    def loads(self) -> tuple[str, ...]:
        """The keys of the loads, in the order they were run."""
        return tuple(dict.fromkeys(cell.load for cell in self.cells))

    @property
    def num_failed(self) -> int:
        return sum(cell.num_failed for cell in self.cells)

    def cell(self, load: str, competitor: str) -> CellFigures | None:
        return next((one for one in self.cells if (one.load, one.competitor) == (load, competitor)), None)

    def to_json_text(self) -> str:
        """The JSON; the requests stand last, one a line."""
        head = {
            "format": FORMAT,
            "machine": self.machine.to_json(),
            "options": {name: _plain(value) for name, value in asdict(self.options).items()},
            "elapsed_s": round(self.elapsed_s, 1),
            "prompts": [{"category": prompt.category, "num_tokens": len(prompt.token_ids)} for prompt in self.prompts],
            "titles": dict(self.titles),
            "ratios": {key: ratio.to_json() for key, ratio in self.ratios.items()},
            "checks": [check.to_json() for check in self.checks],
            "differences": [difference.to_json() for difference in self.differences],
            "cells": [cell.to_json() for cell in self.cells],
            "prefix_trials": [trial.to_json() for trial in self.seen.trials],
            "profile": [asdict(row) for row in self.seen.profile],
        }
        requests = [
            json.dumps(
                {
                    "load": run.block.load.key,
                    "round": run.block.round,
                    "competitor": run.block.competitor,
                    **record.to_json(),
                },
                separators=(",", ":"),
            )
            for run in self.seen.runs
            for record in run.load.records
        ]
        return f'{json.dumps(head, indent=1)[:-2]},\n "requests": [\n' + ",\n".join(requests) + "\n ]\n}\n"


def build_result(
    machine: Machine,
    options: BenchOptions,
    prompts: Sequence[BenchPrompt],
    contenders: Sequence[Contender],
    seen: Measurements,
    elapsed_s: float,
) -> Result:
    by_cell: dict[tuple[str, str], list[BlockRun]] = {}
    for run in seen.runs:
        by_cell.setdefault((run.block.load.key, run.block.competitor), []).append(run)
    goals = Goals(options.ttft_goal_s, options.tpot_goal_s)
    titles = {contender.name: contender.title for contender in contenders}
    order = list(titles)
    loads = list(dict.fromkeys(load for load, _ in by_cell))
    keys = sorted(by_cell, key=lambda key: (loads.index(key[0]), order.index(key[1])))
    cells = [figures_of(by_cell[key], goals) for key in keys]
    ours = frozenset(contender.name for contender in contenders if contender.is_ours)
    checks = checks_of(by_cell, seen.trials, seen.profile)
    ratios = ratios_of(by_cell, cells, ours)
    return Result(
        machine=machine,
        options=options,
        prompts=prompts,
        titles=titles,
        cells=cells,
        ratios={**ratios, **{f"check/{check.name}": check.ratio for check in checks}},
        checks=checks,
        differences=differences(seen.runs, ours),
        seen=seen,
        elapsed_s=elapsed_s,
    )


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
