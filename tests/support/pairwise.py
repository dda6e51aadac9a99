"""Covering arrays: few cases in which every pair (or triple) of values of different factors still occurs.

factors  a: 1 2   b: x y   c: + -        eight cases in the full product, four that have all twelve pairs:
         1 x +    1 y -    2 x -    2 y +
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, str]
Values = frozenset[tuple[str, str]]  # (factor, value)
Factors = Mapping[str, Sequence[str]]


def covering_rows(
    factors: Factors, *, strength: int = 2, about: str | None = None, is_possible: Callable[[Row], bool]
) -> list[Row]:
    """Rows that hold every possible combination of `strength` values, of those with a value of `about` if it is given.

    `is_possible` judges unfinished rows, too. Row after row is begun with a combination that is still missing and
    filled with the values that bring most of the others.
    """
    missing = dict.fromkeys(combinations_of(factors, strength, about, is_possible))  # a set that keeps its order
    by_size = sorted(factors, key=lambda factor: -len(factors[factor]))
    rows: list[Row] = []
    while missing:
        row = dict(sorted(next(iter(missing))))
        for factor in by_size:
            if factor not in row:
                row[factor] = _best_value(factor, factors[factor], row, strength, missing, len(rows), is_possible)
        for parts in combinations(row.items(), strength):
            missing.pop(frozenset(parts), None)
        rows.append({factor: row[factor] for factor in factors})
    return rows


def _best_value(
    factor: str,
    values: Sequence[str],
    row: Row,
    strength: int,
    missing: Collection[Values],
    turn: int,
    is_possible: Callable[[Row], bool],
) -> str:
    """The value that brings most; where several do they take turns, so that none is always seen with the same few."""
    fitting = [value for value in values if is_possible({**row, factor: value})]
    first = turn % len(fitting)
    others = list(combinations(row.items(), strength - 1))

    def gain(value: str) -> int:
        return sum(frozenset([*parts, (factor, value)]) in missing for parts in others)

    return max(fitting[first:] + fitting[:first], key=gain)


def combinations_of(
    factors: Factors, strength: int, about: str | None, is_possible: Callable[[Row], bool]
) -> Iterator[Values]:
    """What such rows have to hold."""
    for names in combinations(factors, strength):
        if about is None or about in names:
            for values in product(*(factors[name] for name in names)):
                if is_possible(dict(zip(names, values, strict=True))):
                    yield frozenset(zip(names, values, strict=True))
