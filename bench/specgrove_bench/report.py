"""The result as Markdown for people: a table a load, categories, promises, where the time goes, and how to read it."""

from __future__ import annotations

from collections.abc import Iterable

from specgrove_bench import step_profile
from specgrove_bench.figures import CellFigures
from specgrove_bench.plan import ClosedLoop
from specgrove_bench.ratios import ratio_key
from specgrove_bench.result import Result
from specgrove_bench.stats import Percentiles, Spread

_SOLO = ClosedLoop(1).key
_DASH = "-"


def markdown(result: Result) -> str:
    """The whole report."""
    parts = [_solo(result)]
    parts += [_load(result, load) for load in result.loads if load != _SOLO]
    parts += [_latencies(result), _categories(result), _time(result), _checks(result), _closing(result)]
    return "\n\n".join(part for part in parts if part)


def _solo(result: Result) -> str:
    rows = []
    for cell in _cells(result, _SOLO):
        speculation, page = cell.speculation, cell.page
        has_trees = speculation is not None and speculation.num_drafts > 0
        rows.append(
            (
                result.titles[cell.competitor],
                _ms(cell.tpot_s.p50 if cell.tpot_s else None),
                _ratio(result, cell, "speedup"),
                f"{speculation.mean_accepted_len:.2f}" if speculation else _DASH,
                f"{speculation.num_drafts / speculation.num_steps:.0%}" if speculation and has_trees else _DASH,
                " ".join(f"{share:.0%}" for share in speculation.acceptance_by_depth)
                if speculation and has_trees
                else _DASH,
                _ms(page.draft_s if page and has_trees else None),
                _ms(cell.ttft_s.p50 if cell.ttft_s else None),
            )
        )
    head = "mode|ms per token|speed-up|tokens per step|steps with a tree|accepted by depth|draft ms|TTFT ms"
    return _section("One client", head, rows)


def _load(result: Result, load: str) -> str:
    rows = []
    for cell in _cells(result, load):
        rows.append(
            (
                result.titles[cell.competitor],
                _spread(cell.request_throughput, 2),
                _spread(cell.output_throughput, 1),
                _spread(cell.full_load_throughput, 1),
                _ratio(result, cell, "throughput"),
                _ratio(result, cell, "speedup"),
                _spread(cell.goodput, 2),
                f"{cell.num_requests - cell.num_failed} of {cell.num_requests}",
            )
        )
    head = (
        "mode|requests/s|tokens/s|tokens/s at full load|of off's, tokens/s|of off's, per token|goodput, requests/s"
        "|answered"
    )
    return _section(_title(result, load), head, rows)


def _latencies(result: Result) -> str:
    rows = [
        (
            cell.load,
            result.titles[cell.competitor],
            *(_percentiles(figure) for figure in (cell.ttft_s, cell.tpot_s, cell.gap_s, cell.token_gap_s)),
            _percentiles(cell.end_to_end_s),
        )
        for cell in result.cells
    ]
    head = "load|mode|TTFT|time per output token|inter-token, per chunk|inter-token, per token|whole answer"
    return _section("Latencies, ms: p50 / p95 / p99", head, rows)


def _categories(result: Result) -> str:
    """Per-token latency by category, under one client and under the highest closed load."""
    parts = []
    closed = [load for load in result.loads if load.startswith("closed-")]
    for load in dict.fromkeys((closed[0], closed[-1])) if closed else ():
        cells = _cells(result, load)
        categories = sorted({category for cell in cells for category in cell.tpot_by_category})
        rows = [(category, *(_ms(cell.tpot_by_category.get(category)) for cell in cells)) for category in categories]
        head = "|".join(["category", *(cell.competitor for cell in cells)])
        parts.append(_section(f"ms per token by category, {load}", head, rows))
    return "\n\n".join(parts)


def _time(result: Result) -> str:
    rows = [
        (
            cell.load,
            result.titles[cell.competitor],
            f"{cell.page.forward_share:.0%}",
            _ms(cell.page.step_s),
            f"{cell.page.step_rows:.1f}" if cell.page.step_rows is not None else _DASH,
            _ms(cell.page.draft_s),
            str(cell.page.num_fallbacks),
        )
        for cell in result.cells
        if cell.page is not None
    ]
    head = "load|mode|in target forwards|forward ms|rows|commit to tree ms|steps without the awaited tree"
    table = _section("Where the time goes: the system", head, rows)
    if not result.seen.profile:
        return table
    return f"{table}\n\n### Where the time goes: one target step\n\n{step_profile.markdown(result.seen.profile)}"


def _checks(result: Result) -> str:
    rows = [
        (
            check.name,
            f"{check.spread.median:.3f} ({check.spread.q1:.3f} to {check.spread.q3:.3f}, n = {check.spread.num})",
            f"{'at least' if check.at_least else 'at most'} {check.limit:g}",
            str(check.verdict),
        )
        for check in result.checks
    ]
    return _section("Promises", "ratio|median (quartiles)|limit|verdict", rows)


def _closing(result: Result) -> str:
    options = result.options
    how = "greedy" if options.temperature == 0 else f"sampled at temperature {options.temperature:g}"
    lines = [
        f"{len(result.prompts)} prompts, {how}; answers of at most {options.max_tokens} tokens at one client and "
        f"{options.load_tokens} under load; the modes take turns; medians; {result.elapsed_s:.0f} s in all.",
        f"Machine: {result.machine.in_words()}.",
    ]
    if "assisted" in result.titles:
        lines.append("The assisted generation of transformers drafts from tokens alone: no states of the target.")
    if result.num_failed:
        errors = {r.answer.error for run in result.seen.runs for r in run.load.records if r.answer.error}
        lines.append(f"{result.num_failed} requests failed: {'; '.join(sorted(errors)[:3])}.")
    if result.differences:
        named = [f"{one.competitor} at {one.load}, prompt {one.prompt}, token {one.position}" for one in
                 result.differences[:5]]  # fmt: skip
        lines.append(
            f"{len(result.differences)} answers differ from the plain ones alone (a tie or an error): "
            f"{'; '.join(named)}."
        )
    else:
        lines.append("All modes gave the same tokens at every load: each prompt's plain ones alone.")
    return "\n".join(lines)


def _title(result: Result, load: str) -> str:
    if load.startswith("closed-"):
        return f"{load.removeprefix('closed-')} clients, closed loop"
    rate = next((cell.rate for cell in result.cells if cell.load == load), None)
    return f"Open loop, {load.removeprefix('open-')}" + (f": {rate.median:.2f} requests/s arrive" if rate else "")


def _cells(result: Result, load: str) -> list[CellFigures]:
    return [cell for cell in result.cells if cell.load == load]


def _section(title: str, head: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    columns = head.split("|")
    return "\n".join([f"### {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines])


def _ratio(result: Result, cell: CellFigures, what: str) -> str:
    if cell.competitor == "off":
        return "1.00"
    ratio = result.ratios.get(ratio_key(cell.load, cell.competitor, what))
    return f"{ratio.spread.median:.2f} ±{ratio.spread.notch:.2f}" if ratio is not None else _DASH


def _spread(spread: Spread | None, digits: int) -> str:
    return f"{spread.median:.{digits}f}" if spread is not None else _DASH


def _percentiles(figure: Percentiles | None) -> str:
    return f"{_ms(figure.p50)} / {_ms(figure.p95)} / {_ms(figure.p99)}" if figure is not None else _DASH


def _ms(seconds: float | None) -> str:
    return f"{seconds * 1000:.1f}" if seconds is not None else _DASH
