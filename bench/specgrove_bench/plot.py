"""The result as one SVG: throughput and latencies by number of clients, open loops, and speed-ups by category."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specgrove_bench.figures import CellFigures
from specgrove_bench.modes import PLAIN
from specgrove_bench.result import Result
from specgrove_bench.stats import Percentiles, Spread
from specgrove_bench.svg import Panel, Series, draw

Figure = Callable[[CellFigures], float | None]


def plot(result: Result) -> str:
    """The SVG; panels for what was not measured are left out."""
    closed = [load for load in result.loads if load.startswith("closed-")]
    opened = [load for load in result.loads if load.startswith("open-")]
    return draw(
        [
            _panel(result, "tokens a second at full load, by clients", closed, lambda c: _mid(c.full_load_throughput)),
            _panel(result, "ms per output token (p50), by clients", closed, lambda c: _ms(c.tpot_s, 50)),
            _panel(result, "TTFT ms (p95), by clients", closed, lambda c: _ms(c.ttft_s, 95)),
            _panel(result, "ms between chunks (p99), by clients", closed, lambda c: _ms(c.gap_s, 99)),
            _panel(result, "ms per output token (p95), open loops", opened, lambda c: _ms(c.tpot_s, 95)),
            _panel(result, "TTFT ms (p95), open loops", opened, lambda c: _ms(c.ttft_s, 95)),
            _panel(result, "goodput, requests a second", [*closed, *opened], lambda c: _mid(c.goodput)),
            _by_category(result, closed),
        ]
    )


def _panel(result: Result, title: str, loads: Sequence[str], figure: Figure) -> Panel:
    series = []
    for name in result.titles:
        cells = [result.cell(load, name) for load in loads]
        values = tuple(figure(cell) if cell is not None else None for cell in cells)
        if any(value is not None for value in values):
            series.append(Series(name, values))
    places = tuple(load.removeprefix("closed-").removeprefix("open-") for load in loads)
    return Panel(title, places, tuple(series))


def _by_category(result: Result, closed: Sequence[str]) -> Panel:
    """Speed-up per token over plain decoding, of the medians of each category, with one client."""
    title = "speed-up per token by category, 1 client"
    plain = result.cell(closed[0], PLAIN) if closed else None
    if plain is None:
        return Panel(title, (), ())
    series = []
    for name in result.titles:
        cell = result.cell(closed[0], name)
        if cell is not None and cell.page is not None and name != PLAIN:
            own = cell.tpot_by_category
            values = tuple(
                plain_s / own[category] if own.get(category) else None
                for category, plain_s in plain.tpot_by_category.items()
            )
            series.append(Series(name, values))
    return Panel(title, tuple(plain.tpot_by_category), tuple(series), are_bars=True)


def _mid(spread: Spread | None) -> float | None:
    return spread.median if spread is not None else None


def _ms(figure: Percentiles | None, percent: int) -> float | None:
    return 1000 * {50: figure.p50, 95: figure.p95, 99: figure.p99}[percent] if figure is not None else None
