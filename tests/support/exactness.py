"""Greedy equality with the tie rule, and the count of its uses.

A mismatch is a failure unless the plain run's own two best logits at that position lie within 1e-4: batch shapes may
move a float32 logit by about 1e-5, and then either token is the target's. After such a tie the two runs are different
texts, so the rest of that prompt is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

TIE_GAP = 1e-4
LogitGap = Callable[[Sequence[int]], float]  # token ids -> gap of the two best logits for the token after them


@dataclass(slots=True)
class TieCount:
    """How often the tie rule was needed, by what was compared."""

    lines: list[str] = field(default_factory=list)

    def record(self, what: str, num_ties: int, num_prompts: int) -> None:
        line = f"{what}: ties used: {num_ties} of {num_prompts} prompts"
        self.lines.append(line)
        print(line)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The index of the first token in which two outputs differ, the shorter one's end included; None if equal."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def assert_equal_but_for_ties(
    what: str,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    other: Sequence[Sequence[int]],
    logit_gap: LogitGap,
    ties: TieCount,
) -> None:
    """Every output of `other` equals the one of `plain`, ties by `logit_gap` (of the plain run's model) aside."""
    num_ties = 0
    failures = []
    for number, (prompt, expected, got) in enumerate(zip(prompts, plain, other, strict=True)):
        place = first_difference(expected, got)
        if place is None:
            continue
        gap = logit_gap([*prompt, *expected[:place]])
        if gap < TIE_GAP:
            num_ties += 1
        else:
            failures.append(f"prompt {number}: token {place} differs ({expected[place:][:3]} and {got[place:][:3]})")
            failures[-1] += f", and the plain run's top-2 gap there is {gap:.2e}"
    ties.record(what, num_ties, len(prompts))
    assert not failures, f"{what}: " + "; ".join(failures)
