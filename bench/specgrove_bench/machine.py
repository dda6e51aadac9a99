"""The facts of the machine that a figure needs to mean something."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and with what a run was made."""

    cpu: str
    cores: int
    cpu_capability: str  # what torch dispatches to, such as AVX2
    load_before: float  # one-minute load average at the start: above 0.5 somebody else is at work too
    python: str
    torch: str
    transformers: str
    torch_threads: int

    @classmethod
    def of_this_run(cls) -> Machine:
        return cls(
            cpu=_cpu_model(),
            cores=len(os.sched_getaffinity(0)),
            cpu_capability=torch.backends.cpu.get_cpu_capability(),
            load_before=round(os.getloadavg()[0], 2),
            python=platform.python_version(),
            torch=torch.__version__,
            transformers=version("transformers"),
            torch_threads=torch.get_num_threads(),
        )

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def in_words(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores ({self.cpu_capability}), load {self.load_before} at the start, "
            f"Python {self.python}, torch {self.torch} with {self.torch_threads} threads, "
            f"transformers {self.transformers}"
        )


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown CPU"
