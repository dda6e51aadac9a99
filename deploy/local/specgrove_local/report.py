"""The table under the answer: what speculation did, and the same prompt without it."""

from __future__ import annotations

from itertools import zip_longest

from specgrove_local.grpc_client import Answer, Figures


def first_difference(left: list[int], right: list[int]) -> int | None:
    """The index of the first token in which two answers differ; None when they are the same."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def comparison_table(with_speculation: Answer, without: Answer) -> str:
    """Both answers' figures side by side. Both are complete: their `figures` are set."""
    on, off = _figures(with_speculation), _figures(without)
    rows = [
        ("", "speculation on", "off"),
        ("steps (target forwards)", str(on.num_steps), str(off.num_steps)),
        ("committed tokens", str(on.num_committed_tokens), str(off.num_committed_tokens)),
        ("committed tokens per step", f"{on.committed_per_step:.2f}", f"{off.committed_per_step:.2f}"),
        ("draft tokens verified", str(on.num_draft_tokens), str(off.num_draft_tokens)),
        ("draft tokens accepted", str(on.num_accepted_tokens), str(off.num_accepted_tokens)),
        ("time to first token", _milliseconds(on.prefill_s), _milliseconds(off.prefill_s)),
        ("time per token", _milliseconds(on.time_per_token_s), _milliseconds(off.time_per_token_s)),
    ]
    lines = [f"  {name:<27}{left:>16}{right:>12}" for name, left, right in rows]
    lines.append(f"  {'acceptance by depth':<27}{acceptance_by_depth(on)}")
    if on.time_per_token_s and off.time_per_token_s:
        ratio = off.time_per_token_s / on.time_per_token_s
        lines.append(f"  {'speed-up per token':<27}{ratio:>15.2f}x")
    lines.append(f"  {'answers identical':<27}{_identity(with_speculation, without)}")
    return "\n".join(lines)


def plain_table(answer: Answer) -> str:
    """The figures of plain decoding alone."""
    figures = _figures(answer)
    return (
        f"  {'committed tokens':<27}{figures.num_committed_tokens:>16}\n"
        f"  {'time to first token':<27}{_milliseconds(figures.prefill_s):>16}\n"
        f"  {'time per token':<27}{_milliseconds(figures.time_per_token_s):>16}"
    )


def acceptance_by_depth(figures: Figures) -> str:
    """Per depth, how many of the trees that reached it were accepted that far: `1: 62% (41/66)  2: ...`."""
    parts = [
        f"{depth}: {accepted / drafted:.0%} ({accepted}/{drafted})"
        for depth, (accepted, drafted) in enumerate(
            zip_longest(figures.accepted_per_depth, figures.drafted_per_depth, fillvalue=0), start=1
        )
        if drafted
    ]
    return "  ".join(parts) or "nothing was drafted"


def _identity(one: Answer, other: Answer) -> str:
    index = first_difference(one.token_ids, other.token_ids)
    if index is None:
        return f"yes, all {len(one.token_ids)} tokens"
    return f"NO: they differ from token {index + 1} on"


def _figures(answer: Answer) -> Figures:
    if answer.figures is None:
        raise ValueError("the answer carries no figures: its stream did not end")
    return answer.figures


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
