"""Two kinds of panel, drawn by hand as SVG: lines over a few named places, and groups of bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = (
    "#555555",
    "#1b6ca8",
    "#d1495b",
    "#66a182",
    "#edae49",
    "#5b5f97",
    "#8d6a9f",
    "#00798c",
    "#a23b72",
    "#b08968",
)
_PANEL_W, _PANEL_H = 400, 400
_LEFT, _TOP, _PLOT_W, _PLOT_H = 50, 30, 330, 180
_LEGEND_ROW, _LEGEND_ROWS = 15, 9


@dataclass(frozen=True, slots=True)
class Series:
    """Values at the panel's places; None where there is none."""

    label: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """A diagram from zero up, with the same places for all its series."""

    title: str
    places: tuple[str, ...]
    series: tuple[Series, ...]
    are_bars: bool = False

    @property
    def highest(self) -> float:
        return max((value for one in self.series for value in one.values if value is not None), default=0.0)


def draw(panels: Sequence[Panel], columns: int = 3) -> str:
    """One SVG of all panels that hold anything, `columns` in a row."""
    shown = [panel for panel in panels if panel.highest > 0]
    num_rows = -(-len(shown) // columns) or 1
    body = "".join(
        f'<g transform="translate({_PANEL_W * (place % columns)} {_PANEL_H * (place // columns)})">{_panel(panel)}</g>'
        for place, panel in enumerate(shown)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_PANEL_W * min(columns, max(len(shown), 1))} '
        f'{_PANEL_H * num_rows}" font-family="sans-serif" font-size="11" fill="#333">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    axis = f"M{_LEFT} {_TOP}V{_TOP + _PLOT_H}H{_LEFT + _PLOT_W}"
    parts = [_text(_LEFT, 16, panel.title, "start"), f'<path d="{axis}" fill="none" stroke="#999"/>']
    for share in (0.0, 0.5, 1.0):
        value = panel.highest * share
        parts.append(_text(_LEFT - 5, _y(panel, value) + 4, f"{value:.3g}", "end"))
    parts += [
        _text(_x(panel, place), _TOP + _PLOT_H + 14, name[:14], "middle") for place, name in enumerate(panel.places)
    ]
    for number, one in enumerate(panel.series):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(_bars(panel, number, one, colour) if panel.are_bars else _line(panel, one, colour))
        parts.append(_legend(number, one.label, colour))
    return "".join(parts)


def _line(panel: Panel, one: Series, colour: str) -> str:
    points = [(_x(panel, place), _y(panel, value)) for place, value in enumerate(one.values) if value is not None]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>{dots}'


def _bars(panel: Panel, number: int, one: Series, colour: str) -> str:
    group = _PLOT_W / len(panel.places) * 0.8
    width = group / len(panel.series)
    parts = []
    for place, value in enumerate(one.values):
        if value is not None:
            left, upper = _x(panel, place) - group / 2 + width * number, _y(panel, value)
            parts.append(
                f'<rect x="{left:.1f}" y="{upper:.1f}" width="{width * 0.9:.1f}" '
                f'height="{_TOP + _PLOT_H - upper:.1f}" fill="{colour}"/>'
            )
    return "".join(parts)


def _legend(number: int, label: str, colour: str) -> str:
    x = _LEFT + (number // _LEGEND_ROWS) * _PLOT_W / 2
    y = _TOP + _PLOT_H + 34 + _LEGEND_ROW * (number % _LEGEND_ROWS)
    return f'<rect x="{x}" y="{y - 8}" width="9" height="9" fill="{colour}"/>{_text(x + 13, y, label, "start")}'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _x(panel: Panel, place: int) -> float:
    return _LEFT + (place + 0.5) * _PLOT_W / len(panel.places)


def _y(panel: Panel, value: float) -> float:
    return _TOP + _PLOT_H * (1.0 - value / panel.highest)
