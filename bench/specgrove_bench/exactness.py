"""Whether all modes, at every load, gave each prompt the tokens that plain decoding gave it alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from specgrove_bench.measure import BlockRun
from specgrove_bench.modes import PLAIN
from specgrove_bench.plan import ClosedLoop


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that left the path of the plain one."""

    load: str
    competitor: str
    prompt: int
    position: int  # of the first token that differs

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def solo_answers(runs: Sequence[BlockRun]) -> dict[int, tuple[int, ...]]:
    """By prompt, the tokens of plain decoding at concurrency 1."""
    return {
        record.prompt: record.answer.token_ids
        for run in runs
        if run.block.competitor == PLAIN and run.block.load == ClosedLoop(1)
        for record in run.load.records
        if record.is_ok
    }


def differences(runs: Sequence[BlockRun], ours: frozenset[str]) -> list[Difference]:
    """Every answer of a mode in `ours` that is not the solo plain one, cut off where its own limit of tokens is."""
    solo = solo_answers(runs)
    found = []
    for run in runs:
        if run.block.competitor not in ours:
            continue
        for record in run.load.records:
            if record.is_ok and record.prompt in solo:
                wanted = solo[record.prompt][: run.block.max_tokens]
                if record.answer.token_ids != wanted:
                    position = _first_difference(record.answer.token_ids, wanted)
                    found.append(Difference(run.block.load.key, run.block.competitor, record.prompt, position))
    return found


def _first_difference(given: Sequence[int], wanted: Sequence[int]) -> int:
    for position, (one, other) in enumerate(zip(given, wanted, strict=False)):
        if one != other:
            return position
    return min(len(given), len(wanted))
