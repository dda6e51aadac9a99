"""The result as a Markdown table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from specgrove_bench.figures import ModeFigures, Run, figures_of
from specgrove_bench.machine import Machine
from specgrove_bench.measure import Measurements
from specgrove_bench.modes import MODES
from specgrove_bench.options import BenchOptions
from specgrove_bench.prompts import BenchPrompt


@dataclass(frozen=True, slots=True)
class ReferenceFigures:
    """`transformers` generate beside plain decoding, over the prompts that both answered."""

    time_per_token_s: float
    ratio_to_off: float  # how many times plain decoding is as fast
    num_prompts: int


@dataclass(frozen=True, slots=True)
class Result:
    """All figures of one bench run."""

    machine: Machine
    options: BenchOptions
    prompts: Sequence[BenchPrompt]
    modes: dict[str, ModeFigures]
    reference: ReferenceFigures | None
    runs: dict[str, list[Run]]
    elapsed_s: float

    def to_json(self) -> dict[str, object]:
        options = {
            name: str(value) if isinstance(value, Path) else value for name, value in asdict(self.options).items()
        }
        return {
            "machine": self.machine.to_json(),
            "options": options,
            "elapsed_s": round(self.elapsed_s, 1),
            "prompts": [{"category": prompt.category, "num_tokens": len(prompt.token_ids)} for prompt in self.prompts],
            "modes": {name: figures.to_json() for name, figures in self.modes.items()},
            "transformers": asdict(self.reference) if self.reference else None,
            "runs": {name: [run.to_json() for run in runs] for name, runs in self.runs.items()},
        }


def build_result(
    machine: Machine, options: BenchOptions, prompts: Sequence[BenchPrompt], seen: Measurements, elapsed_s: float
) -> Result:
    off = seen.runs["off"]
    return Result(
        machine=machine,
        options=options,
        prompts=prompts,
        modes={mode: figures_of(runs, off) for mode, runs in seen.runs.items()},
        reference=_reference_figures(seen),
        runs=seen.runs,
        elapsed_s=elapsed_s,
    )


def markdown(result: Result) -> str:
    """The table, its machine, and what it does not say by itself."""
    options = result.options
    lines = [
        "| mode | ms per token | speed-up | tokens per step | steps with a tree | accepted by depth | forward ms "
        "| draft ms | prefill ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(mode, figures, options) for mode, figures in result.modes.items()]
    if result.reference is not None:
        reference = result.reference
        lines.append(
            f"| transformers generate, float32 ({reference.num_prompts} prompts) | {_ms(reference.time_per_token_s)} "
            f"| {1 / reference.ratio_to_off:.2f} | 1.00 | - | - | - | - | - |"
        )
    lines += [
        "",
        f"Greedy, batch 1, {len(result.prompts)} prompts, at most {options.max_tokens} tokens each, via the gateway; "
        f"medians over prompts, the modes taking turns on each prompt; {result.elapsed_s:.0f} s in all.",
        f"Machine: {result.machine.in_words()}.",
    ]
    if result.reference is not None:
        lines.append(
            f"Plain decoding is {result.reference.ratio_to_off:.1f} times as fast as transformers generate in float32."
        )
    different = [MODES[mode].title for mode, figures in result.modes.items() if not figures.is_identical]
    lines.append(
        f"Answers differ from those with speculation off (a tie or an error): {', '.join(different)}."
        if different
        else "All modes gave the same tokens."
    )
    return "\n".join(lines)


def _row(mode: str, figures: ModeFigures, options: BenchOptions) -> str:
    title = MODES[mode].title
    if mode in ("chain", "tree"):
        title += f" <{options.chain if mode == 'chain' else options.tree}>"
    depths = " ".join(f"{share:.0%}" for share in figures.acceptance_by_depth) or "-"
    speedup = f"{figures.speedup:.2f}" if figures.speedup is not None else "-"
    trees = f"{figures.num_drafts / figures.num_steps:.0%}" if figures.num_steps else "-"
    return (
        f"| {title} | {_ms(figures.time_per_token_s)} | {speedup} | {figures.mean_accepted_len:.2f} | {trees} "
        f"| {depths} | {_ms(figures.step_s)} | {_ms(figures.draft_s)} | {_ms(figures.first_token_s)} |"
    )


def _reference_figures(seen: Measurements) -> ReferenceFigures | None:
    pairs = [
        (theirs.time_per_token_s, ours)
        for theirs, run in zip(seen.transformers, seen.runs["off"], strict=False)
        if (ours := run.answer.time_per_token_s) and theirs.time_per_token_s == theirs.time_per_token_s
    ]
    if not pairs:
        return None
    return ReferenceFigures(
        median(theirs for theirs, _ in pairs), median(theirs / ours for theirs, ours in pairs), len(pairs)
    )


def _ms(seconds: float | None) -> str:
    return f"{seconds * 1000:.1f}" if seconds is not None else "-"
