"""What the command takes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specgrove_bench.gpu_check.acceptance import SyntheticAcceptance

_ACCEPTANCE = "0.8,0.75,0.7,0.65,0.6,0.55,0.5"


@dataclass(frozen=True, slots=True)
class Options:
    """One run of the check."""

    interpret: bool
    checks_only: bool
    acceptance: SyntheticAcceptance
    out: Path


def parse(argv: Sequence[str]) -> Options:
    """The options in `argv`; wrong ones end the process with a message."""
    parser = argparse.ArgumentParser(prog="python -m specgrove_bench.gpu_check", description=__doc__)
    parser.add_argument(
        "--interpret", action="store_true", help="check small shapes in Triton's interpreter on the CPU, time nothing"
    )
    parser.add_argument("--checks-only", action="store_true", help="check on the GPU, time nothing")
    parser.add_argument(
        "--acceptance",
        type=SyntheticAcceptance.parse,
        default=SyntheticAcceptance.parse(_ACCEPTANCE),
        help=f"synthetic acceptance by depth (default {_ACCEPTANCE})",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("bench/results/gpu-check"), help="folder of the report (default %(default)s)"
    )
    chosen = parser.parse_args(argv)
    return Options(chosen.interpret, chosen.checks_only, chosen.acceptance, chosen.out)
