"""A table as it is printed, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

Format = Callable[[float], str]
Cell = float | str | None


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def two_places(value: float) -> str:
    return f"{value:.2f}"


def one_place(value: float) -> str:
    return f"{value:.1f}"


@dataclass(frozen=True, slots=True)
class Line:
    """One row; None where nothing was measured."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; `note` says how to read them."""

    letter: str
    title: str
    corner: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    note: str = ""

    def __post_init__(self) -> None:
        if any(len(line.cells) != len(self.columns) for line in self.lines):
            raise ValueError(f"every line of {self.title!r} needs {len(self.columns)} cells")

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def markdown(table: Table, form: Format) -> str:
    """The table under a heading of the third level; numbers by `form`, words as they are."""
    rows = [
        f"### {table.letter}. {table.title}",
        "",
        *([table.note, ""] if table.note else []),
        "| " + " | ".join((table.corner, *table.columns)) + " |",
        "|" + "---|" * (len(table.columns) + 1),
        *("| " + " | ".join((line.label, *_written(line.cells, form))) + " |" for line in table.lines),
    ]
    return "\n".join(rows)


def _written(cells: Sequence[Cell], form: Format) -> list[str]:
    return [cell if isinstance(cell, str) else "-" if cell is None else form(cell) for cell in cells]
