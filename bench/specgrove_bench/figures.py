"""From the requests of a competitor under a load to its figures: percentiles over requests, medians over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from specgrove_bench.measure import BlockRun
from specgrove_bench.request import Answer, Record, SpeculationCounts
from specgrove_bench.stats import Percentiles, Spread
from specgrove_bench.verifier_page import PageSums


@dataclass(frozen=True, slots=True)
class SpeculationFigures:
    """Sums over the requests of a cell, as the verifier counted them."""

    mean_accepted_len: float  # committed tokens per step, bonus included
    num_steps: int
    num_drafts: int  # steps that verified a tree
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_by_depth: tuple[float, ...]  # of the trees that reached a depth, the share accepted that far
    tokens_per_step: Spread | None  # over requests


@dataclass(frozen=True, slots=True)
class PageFigures:
    """What the verifier's page says of the same time."""

    step_s: float | None  # mean of a target forward
    step_rows: float | None  # mean rows of one
    draft_s: float | None  # mean from commit to tree
    num_fallbacks: int
    forward_share: float  # target forwards' part of the wall time


@dataclass(frozen=True, slots=True)
class CellFigures:
    """One competitor under one load. Durations in seconds; None where there is nothing to take them from."""

    load: str
    competitor: str
    num_requests: int
    num_failed: int
    num_tokens: int
    rate: Spread | None  # arrivals a second over the rounds, in open loops
    request_throughput: Spread | None  # a second, over rounds
    output_throughput: Spread | None  # tokens a second, over rounds
    full_load_throughput: Spread | None  # the same while every client was busy
    goodput: Spread | None  # requests a second that met the goals, over rounds; None without goals
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    gap_s: Percentiles | None  # inter-token latency per chunk
    token_gap_s: Percentiles | None  # inter-token latency per token
    end_to_end_s: Percentiles | None
    tpot_by_category: dict[str, float]  # medians
    speculation: SpeculationFigures | None
    page: PageFigures | None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Goals:
    """The objectives that a request must meet to count for goodput."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def is_set(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None


def figures_of(runs: Sequence[BlockRun], goals: Goals) -> CellFigures:
    """The figures of one cell; `runs` are its blocks, of which there is at least one."""
    records = [record for run in runs for record in run.load.records]
    ok = [record for record in records if record.is_ok]
    answers = [record.answer for record in ok]
    return CellFigures(
        load=runs[0].block.load.key,
        competitor=runs[0].block.competitor,
        num_requests=len(records),
        num_failed=len(records) - len(ok),
        num_tokens=sum(answer.num_tokens for answer in answers),
        rate=Spread.of([run.rate for run in runs if run.rate is not None]),
        request_throughput=Spread.of([_num_ok(run) / run.load.duration_s for run in runs]),
        output_throughput=Spread.of([run.load.num_tokens / run.load.duration_s for run in runs]),
        full_load_throughput=Spread.of([rate for run in runs if (rate := run.load.full_load_tokens_per_s)]),
        goodput=Spread.of([_num_good(run, goals) / run.load.duration_s for run in runs]) if goals.is_set else None,
        ttft_s=Percentiles.of([record.ttft_s for record in ok]),
        tpot_s=Percentiles.of(_times_per_token(ok)),
        gap_s=Percentiles.of([gap for answer in answers for gap in answer.gaps_s()]),
        token_gap_s=Percentiles.of([gap for answer in answers for gap in answer.token_gaps_s()]),
        end_to_end_s=Percentiles.of([record.end_to_end_s for record in ok]),
        tpot_by_category=_tpot_by_category(ok),
        speculation=_speculation(answers),
        page=_page(runs),
    )


def _num_ok(run: BlockRun) -> int:
    return sum(record.is_ok for record in run.load.records)


def _num_good(run: BlockRun, goals: Goals) -> int:
    return sum(record.meets(goals.ttft_s, goals.tpot_s) for record in run.load.records)


def _times_per_token(records: Sequence[Record]) -> list[float]:
    return [time_s for record in records if (time_s := record.answer.time_per_token_s) is not None]


def _tpot_by_category(records: Sequence[Record]) -> dict[str, float]:
    medians = {}
    for category in sorted({record.category for record in records}):
        spread = Spread.of(_times_per_token([record for record in records if record.category == category]))
        if spread is not None:
            medians[category] = spread.median
    return medians


def _speculation(answers: Sequence[Answer]) -> SpeculationFigures | None:
    counted = [(answer.num_tokens, answer.counts) for answer in answers if answer.counts and answer.counts.num_steps]
    counts = [one for _, one in counted]
    num_steps = sum(one.num_steps for one in counts)
    if not num_steps:
        return None
    return SpeculationFigures(
        mean_accepted_len=sum(num_tokens for num_tokens, _ in counted) / num_steps,
        num_steps=num_steps,
        num_drafts=sum(one.num_drafts for one in counts),
        num_draft_tokens=sum(one.num_draft_tokens for one in counts),
        num_accepted_tokens=sum(one.num_accepted_tokens for one in counts),
        acceptance_by_depth=_acceptance_by_depth(counts),
        tokens_per_step=Spread.of([num_tokens / one.num_steps for num_tokens, one in counted]),
    )


def _acceptance_by_depth(counts: Sequence[SpeculationCounts]) -> tuple[float, ...]:
    depth = max((len(one.drafted_per_depth) for one in counts), default=0)
    drafted = [sum(_at(one.drafted_per_depth, place) for one in counts) for place in range(depth)]
    accepted = [sum(_at(one.accepted_per_depth, place) for one in counts) for place in range(depth)]
    return tuple(kept / sent for kept, sent in zip(accepted, drafted, strict=True) if sent)


def _at(counts: Sequence[int], place: int) -> int:
    return counts[place] if place < len(counts) else 0


def _page(runs: Sequence[BlockRun]) -> PageFigures | None:
    pages = [run.page for run in runs if run.page is not None]
    if not pages:
        return None
    page = sum(pages, start=PageSums())
    return PageFigures(
        step_s=page.step_s / page.num_steps if page.num_steps else None,
        step_rows=page.step_rows / page.num_steps if page.num_steps else None,
        draft_s=page.draft_s / page.num_drafts if page.num_drafts else None,
        num_fallbacks=int(page.num_fallbacks),
        forward_share=page.step_s / sum(run.load.duration_s for run in runs),
    )
