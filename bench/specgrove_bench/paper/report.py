"""The files of a run: `paper.md` for people, `paper.json` for programs, `paper.svg` for slides."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from specgrove_bench.machine import Machine
from specgrove_bench.paper.findings import Findings
from specgrove_bench.paper.options import PaperOptions
from specgrove_bench.paper.plot import draw
from specgrove_bench.paper.reach import marks
from specgrove_bench.paper.table import markdown
from specgrove_bench.paper.tables import build_tables
from specgrove_bench.prompts import BenchPrompt


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run."""

    options: PaperOptions
    machine: Machine
    target_name: str
    prompts: Sequence[BenchPrompt]
    findings: Findings
    elapsed_s: float

    def markdown(self) -> str:
        """Every table, then the marks."""
        options = self.options
        by_category = Counter(prompt.category for prompt in self.prompts)
        parts = [
            f"## {self.target_name} with {', '.join(self.findings.ssm_names) or 'no SSM'}",
            f"{len(self.prompts)} prompts ({', '.join(f'{n} {name}' for name, n in sorted(by_category.items()))}), at "
            f"most {options.max_tokens} tokens each; greedy, and temperature {options.temperature:g} from seed "
            f"{options.seed}. Sums over steps, so that long answers weigh more.\n"
            f"Machine: {self.machine.in_words()}; {self.elapsed_s:.0f} s in all.",
            *(markdown(printed.table, printed.form) for printed in build_tables(self.findings, options.tables)),
        ]
        held_to = marks(self.findings)
        if held_to:
            parts.append("### Marks\n\n" + "\n".join(mark.line() for mark in held_to))
        return "\n\n".join(parts) + "\n"

    def to_json(self) -> dict[str, object]:
        return {
            "target": self.target_name,
            "machine": self.machine.to_json(),
            "options": asdict(self.options),
            "elapsed_s": round(self.elapsed_s, 1),
            "prompts": [{"category": prompt.category, "num_tokens": len(prompt.token_ids)} for prompt in self.prompts],
            "findings": self.findings.to_json(),
            "tables": [printed.table.to_json() for printed in build_tables(self.findings, self.options.tables)],
            "marks": [mark.to_json() for mark in marks(self.findings)],
        }

    def write(self, folder: Path) -> list[Path]:
        """Write all three files; returns where they are."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = {
            "paper.md": self.markdown(),
            "paper.json": json.dumps(self.to_json(), indent=1, default=str) + "\n",
            "paper.svg": draw(self.findings),
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        return [folder / name for name in texts]
