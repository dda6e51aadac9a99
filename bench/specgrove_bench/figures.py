"""From the answers of a mode to its figures: medians over prompts, sums over steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from specgrove_bench.gateway import TimedAnswer
from specgrove_bench.verifier_page import PageSums


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt in one mode."""

    prompt: int
    answer: TimedAnswer
    page: PageSums

    def to_json(self) -> dict[str, object]:
        answer = asdict(self.answer)
        answer["num_tokens"] = len(answer.pop("token_ids"))
        return {"prompt": self.prompt, **answer, **{f"page_{name}": value for name, value in asdict(self.page).items()}}


@dataclass(frozen=True, slots=True)
class ModeFigures:
    """The figures of one mode. Times in seconds; None where there is nothing to take them from."""

    time_per_token_s: float | None  # median over prompts
    speedup: float | None  # median over prompts of (off / this mode), the same prompt
    first_token_s: float
    mean_accepted_len: float  # committed tokens per step, bonus included, over all prompts
    num_tokens: int
    num_steps: int
    num_drafts: int  # steps that verified a tree
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_by_depth: tuple[float, ...]  # of the trees that reached a depth, the share accepted that far
    step_s: float | None  # mean of a target forward
    draft_s: float | None  # mean from commit to tree
    num_fallbacks: int
    is_identical: bool  # all answers equal those with speculation off

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def figures_of(runs: Sequence[Run], off: Sequence[Run]) -> ModeFigures:
    """`off` holds the runs of plain decoding, of the same prompts in the same order."""
    answers = [run.answer for run in runs]
    times = [answer.time_per_token_s for answer in answers if answer.time_per_token_s is not None]
    ratios = [
        plain / own
        for run, base in zip(runs, off, strict=True)
        if (own := run.answer.time_per_token_s) and (plain := base.answer.time_per_token_s)
    ]
    page = sum((run.page for run in runs), start=PageSums())
    num_tokens = sum(len(answer.token_ids) for answer in answers)
    num_steps = sum(answer.num_steps for answer in answers)
    return ModeFigures(
        time_per_token_s=median(times) if times else None,
        speedup=median(ratios) if ratios else None,
        first_token_s=median(answer.first_token_s for answer in answers),
        mean_accepted_len=num_tokens / num_steps if num_steps else 0.0,
        num_tokens=num_tokens,
        num_steps=num_steps,
        num_drafts=sum(answer.num_drafts for answer in answers),
        num_draft_tokens=sum(answer.num_draft_tokens for answer in answers),
        num_accepted_tokens=sum(answer.num_accepted_tokens for answer in answers),
        acceptance_by_depth=_acceptance_by_depth(answers),
        step_s=page.step_s / page.num_steps if page.num_steps else None,
        draft_s=page.draft_s / page.num_drafts if page.num_drafts else None,
        num_fallbacks=int(page.num_fallbacks),
        is_identical=all(run.answer.token_ids == base.answer.token_ids for run, base in zip(runs, off, strict=True)),
    )


def _acceptance_by_depth(answers: Sequence[TimedAnswer]) -> tuple[float, ...]:
    depth = max((len(answer.drafted_per_depth) for answer in answers), default=0)
    drafted = [sum(_at(answer.drafted_per_depth, place) for answer in answers) for place in range(depth)]
    accepted = [sum(_at(answer.accepted_per_depth, place) for answer in answers) for place in range(depth)]
    return tuple(kept / sent for kept, sent in zip(accepted, drafted, strict=True) if sent)


def _at(counts: Sequence[int], place: int) -> int:
    return counts[place] if place < len(counts) else 0
