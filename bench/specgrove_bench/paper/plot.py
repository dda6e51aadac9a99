"""The findings as one small SVG: success rates, tokens per step by width, and members side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from specgrove_bench.paper import reported
from specgrove_bench.paper.counts import MAX_WIDTH
from specgrove_bench.paper.findings import Findings, LineupKey, SuccessKey, WidthKey
from specgrove_bench.paper.ways import STOCHASTIC, Way

_COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#5b5f97", "#8d6a9f")
_PANEL_W, _PANEL_H = 360, 350
_LEFT, _TOP, _PLOT_W, _PLOT_H = 44, 30, 300, 170
_WIDTHS = tuple(range(1, MAX_WIDTH + 1))


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one line, x from 1 on; None where there is no point."""

    label: str
    values: tuple[float | None, ...]
    is_dashed: bool = False


def draw(findings: Findings) -> str:
    """The SVG; panels without anything measured are left out."""
    panels = [
        _curves("success rate by number of children, depth 1", _success_curves(findings), top=1.0),
        _curves("tokens per step of <1,1,k,1,1,1,1,1>", _width_curves(findings)),
        _bars("rules at width 5, tokens per step", _rule_bars(findings)),
        _bars("members, tokens per step, greedy", _member_bars(findings)),
    ]
    shown = [panel for panel in panels if panel]
    width = _PANEL_W * max(len(shown), 1)
    body = "".join(f'<g transform="translate({_PANEL_W * place} 0)">{panel}</g>' for place, panel in enumerate(shown))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_PANEL_H}" '
        f'font-family="sans-serif" font-size="11" fill="#333">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _success_curves(findings: Findings) -> list[Curve]:
    lead = findings.ssm_names[:1]
    ours = [
        Curve(str(way), findings.success_rates(SuccessKey(name, way)) or ())
        for name in lead
        for way in (Way.GREEDY, Way.COUPLED, Way.MSS)
        if SuccessKey(name, way) in findings.success
    ]
    return [*ours, Curve("paper, greedy", reported.mean_of(reported.SUCCESS_GREEDY), True)] if ours else []


def _width_curves(findings: Findings) -> list[Curve]:
    ours = [
        Curve(str(way), tuple(findings.tokens_per_step(WidthKey(name, way, width)) for width in _WIDTHS))
        for name in findings.ssm_names[:1]
        for way in (Way.GREEDY, Way.COUPLED)
        if WidthKey(name, way, 1) in findings.widths
    ]
    if not ours:
        return []
    theirs = [("paper, greedy", reported.WIDTHS_GREEDY), ("paper, stochastic", reported.WIDTHS_STOCHASTIC)]
    ends = [(name, reported.mean_of(rows)) for name, rows in theirs]
    return [*ours, *(Curve(name, (first, *[None] * (MAX_WIDTH - 2), last), True) for name, (first, last) in ends)]


def _rule_bars(findings: Findings) -> list[tuple[str, float]]:
    found = [
        (str(way), findings.tokens_per_step(WidthKey(name, way, MAX_WIDTH)))
        for name in findings.ssm_names[:1]
        for way in STOCHASTIC
    ]
    return [(label, value) for label, value in found if value is not None]


def _member_bars(findings: Findings) -> list[tuple[str, float]]:
    keys = [key for key in findings.lineups if key.table == "e" and key.way is Way.GREEDY]
    return [(key.name, findings.tokens_per_step(LineupKey("e", key.name, Way.GREEDY)) or 0.0) for key in keys]


def _curves(title: str, curves: Sequence[Curve], top: float | None = None) -> str:
    if not curves:
        return ""
    highest = top or max(value for curve in curves for value in curve.values if value is not None)
    parts = [_frame(title, highest)]
    parts += [_text(_x(place), _TOP + _PLOT_H + 14, str(place + 1), "middle") for place in range(MAX_WIDTH)]
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(_x(x), _y(value, highest)) for x, value in enumerate(curve.values) if value is not None]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if curve.is_dashed else ""
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in points]
        parts.append(_legend(number, curve.label, colour))
    return "".join(parts)


def _bars(title: str, bars: Sequence[tuple[str, float]]) -> str:
    if not bars:
        return ""
    highest = max(value for _, value in bars) or 1.0
    step = _PLOT_W / len(bars)
    parts = [_frame(title, highest)]
    for number, (label, value) in enumerate(bars):
        colour = _COLOURS[number % len(_COLOURS)]
        left, upper = _LEFT + step * number + step * 0.15, _y(value, highest)
        height = _TOP + _PLOT_H - upper
        parts.append(
            f'<rect x="{left:.1f}" y="{upper:.1f}" width="{step * 0.7:.1f}" height="{height:.1f}" fill="{colour}"/>'
        )
        parts.append(_text(left + step * 0.35, upper - 4, f"{value:.2f}", "middle"))
        parts.append(_legend(number, label, colour))
    return "".join(parts)


def _frame(title: str, highest: float) -> str:
    axis = f"M{_LEFT} {_TOP}V{_TOP + _PLOT_H}H{_LEFT + _PLOT_W}"
    labels = "".join(
        _text(_LEFT - 5, _y(highest * share, highest) + 4, f"{highest * share:.2f}", "end") for share in (0, 0.5, 1)
    )
    return f'{_text(_LEFT, 16, title, "start")}<path d="{axis}" fill="none" stroke="#999"/>{labels}'


def _legend(number: int, label: str, colour: str) -> str:
    y = _TOP + _PLOT_H + 34 + 15 * number
    return f'<rect x="{_LEFT}" y="{y - 8}" width="9" height="9" fill="{colour}"/>{_text(_LEFT + 13, y, label, "start")}'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _x(place: int) -> float:
    return _LEFT + 20 + place * (_PLOT_W - 40) / (MAX_WIDTH - 1)


def _y(value: float, highest: float) -> float:
    return _TOP + _PLOT_H * (1.0 - value / highest)
