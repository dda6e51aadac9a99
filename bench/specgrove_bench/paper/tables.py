"""From findings to the tables, in the paper's order; the paper's own numbers stand in the same tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specgrove_bench.paper import reported
from specgrove_bench.paper.cost import ROW_COUNTS
from specgrove_bench.paper.counts import MAX_WIDTH
from specgrove_bench.paper.findings import Findings, LineupKey, SuccessKey, WidthKey
from specgrove_bench.paper.table import Format, Line, Table, one_place, percent, two_places
from specgrove_bench.paper.ways import STOCHASTIC, Way

_WIDTHS = tuple(range(1, MAX_WIDTH + 1))
_FIRST_TO_LAST = tuple(f"top {width}" for width in _WIDTHS)


_BOTH = (Way.GREEDY, Way.COUPLED)


@dataclass(frozen=True, slots=True)
class Printed:
    """A table and how its numbers are written."""

    table: Table
    form: Format


Builder = Callable[[Findings], Printed]


def build_tables(findings: Findings, letters: Sequence[str]) -> list[Printed]:
    """The tables of `letters` for which there is anything to show."""
    builders: dict[str, tuple[Builder, ...]] = {
        "a": (_success, _success_by_category),
        "b": (_widths, _widths_by_category),
        "c": (_rules, _rules_by_category),
        "d": (_lineups_of("d"), _lineups_by_category("d")),
        "e": (_lineups_of("e"), _members, _lineups_by_category("e")),
        "f": (_costs,),
    }
    printed = [build(findings) for letter in letters for build in builders[letter]]
    return [one for one in printed if one.table.lines]


def _success(findings: Findings) -> Printed:
    lines = [
        Line(
            f"{key.ssm}, {key.way}" + (f", depth {key.depth}" if key.depth > 1 else ""),
            findings.success_rates(key) or (),
        )
        for key in sorted(findings.success, key=lambda key: (key.ssm, list(Way).index(key.way), key.depth))
    ]
    for name, rows in (("greedy", reported.SUCCESS_GREEDY), ("stochastic", reported.SUCCESS_STOCHASTIC)):
        lines.append(Line(f"{reported.PAIR}, {name}, mean of 5 data sets", reported.mean_of(rows)))
    note = (
        "Share of steps (%) with the target's token among the SSM's first k children, everything above them right; "
        "under mss the share with one of the first k draws accepted. Depth 1 unless said otherwise."
    )
    return _printed("a", "success rate", "SSM, way", _FIRST_TO_LAST, lines, note, percent)


def _success_by_category(findings: Findings) -> Printed:
    ssm = _lead(findings)
    ways = [way for way in Way if SuccessKey(ssm, way) in findings.success]
    columns = tuple(f"{way}: top 1 / {MAX_WIDTH}" for way in ways)
    lines = []
    for category in findings.categories():
        rates = [findings.success_rates(SuccessKey(ssm, way), category) for way in ways]
        lines.append(Line(category, tuple(_ends(row) for row in rates)))
    note = "Depth 1, in %."
    return _printed(
        "a", f"success rate of {ssm} by category", "category", columns, lines if ways else [], note, percent
    )


def _ends(rates: tuple[float | None, ...] | None) -> str | None:
    if rates is None or rates[0] is None or rates[-1] is None:
        return None
    return f"{percent(rates[0])} / {percent(rates[-1])}"


def _widths(findings: Findings) -> Printed:
    lines = [
        Line(f"{ssm}, {way}", tuple(findings.tokens_per_step(WidthKey(ssm, way, width)) for width in _WIDTHS))
        for ssm in findings.ssm_names
        for way in _BOTH
        if WidthKey(ssm, way, 1) in findings.widths
    ]
    for name, rows in (("greedy", reported.WIDTHS_GREEDY), ("stochastic", reported.WIDTHS_STOCHASTIC)):
        first, last = reported.mean_of(rows)
        lines.append(Line(f"{reported.PAIR}, {name}, mean of 5 data sets", (first, *[None] * (MAX_WIDTH - 2), last)))
    columns = tuple(f"k = {width}" for width in _WIDTHS)
    note = "Committed tokens per step, bonus token included; 8, 14, 20, 26 and 32 draft nodes."
    return _printed("b", "tokens per step of <1,1,k,1,1,1,1,1>", "SSM, way", columns, lines, note, two_places)


def _widths_by_category(findings: Findings) -> Printed:
    ssm = _lead(findings)
    pairs = [(way, width) for way in _BOTH for width in (1, MAX_WIDTH)]
    pairs = [(way, width) for way, width in pairs if WidthKey(ssm, way, width) in findings.widths]
    columns = tuple(f"{way}, k = {width}" for way, width in pairs)
    lines = [
        Line(name, tuple(findings.tokens_per_step(WidthKey(ssm, way, width), name) for way, width in pairs))
        for name in findings.categories()
    ]
    title = f"tokens per step of <1,1,k,1,1,1,1,1> by category, {ssm}"
    return _printed("b", title, "category", columns, lines if pairs else [], "", two_places)


def _rules(findings: Findings) -> Printed:
    ssm = _lead(findings)
    lines = [
        Line(f"{ssm}, {way}", (findings.tokens_per_step(WidthKey(ssm, way, MAX_WIDTH)),))
        for way in STOCHASTIC
        if WidthKey(ssm, way, MAX_WIDTH) in findings.widths
    ]
    naive, mss = reported.mean_of(reported.NAIVE_AND_MSS)
    lines += [
        Line(f"{reported.PAIR}, naive, mean of 5 data sets", (naive,)),
        Line(f"{reported.PAIR}, mss, mean of 5 data sets", (mss,)),
    ]
    note = "The tree <1,1,5,1,1,1,1,1>, sampled; only `coupled` shares its noise with the drafter."
    return _printed("c", "rules at width 5", "SSM, rule", ("tokens per step",), lines, note, two_places)


def _rules_by_category(findings: Findings) -> Printed:
    ssm = _lead(findings)
    ways = [way for way in STOCHASTIC if WidthKey(ssm, way, MAX_WIDTH) in findings.widths]
    lines = [
        Line(name, tuple(findings.tokens_per_step(WidthKey(ssm, way, MAX_WIDTH), name) for way in ways))
        for name in findings.categories()
    ]
    title = "rules at width 5 by category, tokens per step"
    return _printed("c", title, "category", tuple(map(str, ways)), lines if ways else [], "", two_places)


_COMPARED = {
    "d": ("expansion against merge", "Static trees; as many draft nodes where the name's widths say so."),
    "e": ("members alone and together", "Best-first trees under one node budget."),
}


def _lineup_names(findings: Findings, letter: str) -> list[str]:
    """In the order measured."""
    return list(dict.fromkeys(key.name for key in findings.lineups if key.table == letter))


def _lineups_of(letter: str) -> Builder:
    def build(findings: Findings) -> Printed:
        lines = []
        for name in _lineup_names(findings, letter):
            cells: list[float | None] = []
            for way in _BOTH:
                sums = findings.lineups.get(LineupKey(letter, name, way))
                total = None if sums is None else sums.total()
                cells += [total.tokens_per_step, total.nodes_per_step] if total else [None, None]
            lines.append(Line(name, tuple(cells)))
        columns = tuple(f"{way}: {what}" for way in _BOTH for what in ("tokens per step", "nodes"))
        title, note = _COMPARED[letter]
        return _printed(letter, title, "members", columns, lines, note, two_places)

    return build


def _lineups_by_category(letter: str) -> Builder:
    def build(findings: Findings) -> Printed:
        names = _lineup_names(findings, letter)
        lines = [
            Line(
                category,
                tuple(
                    _pair(*(findings.tokens_per_step(LineupKey(letter, name, way), category) for way in _BOTH))
                    for name in names
                ),
            )
            for category in findings.categories()
        ]
        title = f"{_COMPARED[letter][0]} by category, tokens per step"
        return _printed(
            letter, title, "category", tuple(names), lines if names else [], "Greedy / coupled.", two_places
        )

    return build


def _pair(greedy: float | None, coupled: float | None) -> str | None:
    if greedy is None and coupled is None:
        return None
    return " / ".join("-" if value is None else two_places(value) for value in (greedy, coupled))


def _members(findings: Findings) -> Printed:
    """Which members the accepted nodes of a shared tree come from."""
    lines = []
    for name in _lineup_names(findings, "e"):
        members = findings.member_names.get(("e", name), ())
        sums = findings.lineups.get(LineupKey("e", name, Way.GREEDY))
        total = None if sums is None else sums.total()
        if total is None or len(members) < 2:
            continue
        accepted = max(sum(total.accepted_by_depth.values()), 1)
        for bit, member in enumerate(members):
            share, alone = total.accepted_by_member[bit] / accepted, total.accepted_alone[bit] / accepted
            lines.append(Line(f"{name}: {member}", (share, alone)))
    note = "Share (%) of the accepted nodes that a member proposed, and that it alone proposed; greedy."
    return _printed("e", "accepted nodes by member", "tree: member", ("proposed", "alone"), lines, note, percent)


def _costs(findings: Findings) -> Printed:
    costs = findings.costs
    if costs is None:
        return _printed("f", "", "", (), [], "", one_place)
    columns = tuple(f"{rows} row{'s' if rows > 1 else ''}, ms" for rows in ROW_COUNTS) + (
        "1-row level / 1-row step, %",
    )
    step = costs.target_step_s
    lines = [Line("target, one step", (*(1e3 * seconds for seconds in step), None))]
    for name, level in costs.ssm_level_s.items():
        lines.append(Line(f"{name}, one level", (*(1e3 * seconds for seconds in level), 100 * level[0] / step[0])))
    note = "Medians, taken in turns. A level is one forward of the SSM and the ranking of the children below its rows."
    return _printed("f", "cost of a level", "model", columns, lines, note, one_place)


def _lead(findings: Findings) -> str:
    return findings.ssm_names[0] if findings.ssm_names else "no SSM"


def _printed(
    letter: str, title: str, corner: str, columns: tuple[str, ...], lines: Sequence[Line], note: str, form: Format
) -> Printed:
    return Printed(Table(letter, title, corner, columns, tuple(lines), note), form)
