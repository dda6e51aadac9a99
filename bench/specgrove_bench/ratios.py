"""What two machines, or one machine on two days, have in common: ratios within one run, with their spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from specgrove_bench.figures import CellFigures
from specgrove_bench.measure import BlockRun
from specgrove_bench.modes import PLAIN
from specgrove_bench.request import Record
from specgrove_bench.stats import Spread

Figure = Callable[[Record], float | None]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A spread of ratios, and which way is better for this project."""

    spread: Spread
    is_more_better: bool = True

    def to_json(self) -> dict[str, object]:
        return {**asdict(self.spread), "notch": self.spread.notch, "better": "more" if self.is_more_better else "less"}


def ratio_key(load: str, competitor: str, what: str) -> str:
    return f"{load}/{competitor}/{what}"


def ratios_of(
    runs: dict[tuple[str, str], list[BlockRun]], cells: Sequence[CellFigures], ours: frozenset[str]
) -> dict[str, Ratio]:
    """All ratios to plain decoding, by `load/competitor/what`. More than 1: the competitor is better than plain.

    `speedup` and `ttft` compare requests for the same prompt in the same round, `throughput` the rounds.
    """
    ratios: dict[str, Ratio] = {}
    for (load, name), own in runs.items():
        plain = runs.get((load, PLAIN))
        if plain is None or name == PLAIN:
            continue
        found = {
            "speedup": Spread.of(_by_request(own, plain, lambda record: record.answer.time_per_token_s)),
            "ttft": Spread.of(_by_request(own, plain, lambda record: record.ttft_s)),
            "throughput": Spread.of(_by_round(own, plain)),
        }
        for what, spread in found.items():
            if spread is not None:
                ratios[ratio_key(load, name, what)] = Ratio(spread, name in ours)
    for cell in cells:
        if cell.competitor != PLAIN and cell.speculation is not None and cell.speculation.num_drafts:
            spread = cell.speculation.tokens_per_step
            if spread is not None:
                ratios[ratio_key(cell.load, cell.competitor, "tokens_per_step")] = Ratio(spread)
    return ratios


def speedup_over(runs: dict[tuple[str, str], list[BlockRun]], load: str, name: str, other: str) -> Spread | None:
    """Time per token of `other` over that of `name`, request by request; None where one of them was not measured."""
    if (load, name) not in runs or (load, other) not in runs:
        return None
    own, base = runs[load, name], runs[load, other]
    return Spread.of(_by_request(own, base, lambda record: record.answer.time_per_token_s))


def throughput_over(runs: dict[tuple[str, str], list[BlockRun]], load: str, name: str, other: str) -> Spread | None:
    """Tokens a second of `name` over those of `other`, round by round."""
    if (load, name) not in runs or (load, other) not in runs:
        return None
    return Spread.of(_by_round(runs[load, name], runs[load, other]))


def _by_request(own: Sequence[BlockRun], base: Sequence[BlockRun], figure: Figure) -> list[float]:
    rounds = {run.block.round: run for run in base}
    found = []
    for run in own:
        if run.block.round not in rounds:
            continue
        for record, other in zip(run.load.records, rounds[run.block.round].load.records, strict=True):
            if record.is_ok and other.is_ok:
                mine, theirs = figure(record), figure(other)
                if mine and theirs:
                    found.append(theirs / mine)
    return found


def _by_round(own: Sequence[BlockRun], base: Sequence[BlockRun]) -> list[float]:
    rates = {run.block.round: run.load.full_load_tokens_per_s for run in base}
    found = []
    for run in own:
        mine, theirs = run.load.full_load_tokens_per_s, rates.get(run.block.round)
        if mine and theirs:
            found.append(mine / theirs)
    return found
