"""What was found, as Markdown for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specgrove_bench.gpu_check.correctness import Outcome
from specgrove_bench.gpu_check.timing import StepTiming, Timing


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One run of the check."""

    device: str
    torch: str
    triton: str
    outcomes: Sequence[Outcome]
    bytes_per_s: float | None = None
    timings: Sequence[Timing] = ()
    acceptance_by_depth: Sequence[float] = ()
    steps: Sequence[StepTiming] = ()

    @property
    def passed(self) -> bool:
        return bool(self.outcomes) and all(outcome.passed for outcome in self.outcomes)

    def to_markdown(self) -> str:
        parts = [f"# Kernels on {self.device}\n\ntorch {self.torch}, triton {self.triton}\n", self._correctness()]
        if self.bytes_per_s is not None:
            parts.append(f"## Time\n\nMemory: {self.bytes_per_s / 1e12:.2f} TB/s measured by a copy.\n")
        if self.timings:
            parts.append(
                "| operation | size | kernel ms | plain ms | floor ms | plain / kernel |\n|---|---|---|---|---|---|\n"
                + "".join(
                    f"| {t.operation} | {t.case} | {t.kernel_ms:.3f} | {t.plain_ms:.3f} | {t.floor_ms:.3f} "
                    f"| {t.plain_ms / t.kernel_ms:.2f} |\n"
                    for t in self.timings
                )
            )
        if self.steps:
            parts.append(self._steps())
        return "\n".join(parts)

    def write(self, folder: Path) -> None:
        """`gpu-check.md` and `gpu-check.json` in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu-check.md").write_text(self.to_markdown())
        (folder / "gpu-check.json").write_text(json.dumps({"passed": self.passed, **asdict(self)}, indent=2) + "\n")

    def _correctness(self) -> str:
        worst: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            worst.setdefault(outcome.operation, []).append(outcome)
        lines = [
            f"| {operation} | {len(outcomes)} | {sum(not outcome.passed for outcome in outcomes)} "
            f"| {max(outcome.error for outcome in outcomes):.2g} |\n"
            for operation, outcomes in worst.items()
        ]
        failed = [
            f"* FAILED {outcome.operation}, {outcome.case}: {outcome.error:.3g}, allowed {outcome.tolerance:.3g}\n"
            for outcome in self.outcomes
            if not outcome.passed
        ]
        head = "## Correctness\n\n| operation | cases | failed | largest difference |\n|---|---|---|---|\n"
        return head + "".join(lines) + "".join(["\n", *failed] if failed else [])

    def _steps(self) -> str:
        shares = ", ".join(f"{share:.2f}" for share in self.acceptance_by_depth)
        head = (
            f"## A whole step, 8B Llama with random weights\n\nSynthetic acceptance by depth: {shares}.\n\n"
            "| way | sequences | prefix | nodes | tree step ms | plain step ms | floor ms | tokens per step "
            "| speed-up |\n"
            "|---|---|---|---|---|---|---|---|---|\n"
        )
        return head + "".join(
            f"| {s.way} | {s.num_sequences} | {s.prefix_len} | {s.num_nodes} | {s.tree_ms:.2f} | {s.plain_ms:.2f} "
            f"| {s.floor_ms:.2f} | {s.tokens_per_step:.2f} | {s.speed_up:.2f} |\n"
            for s in self.steps
        )
