"""The command: says in one sentence what is missing, or checks, times and reports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version

import torch

from specgrove_bench.gpu_check.correctness import check_all, full_grid, small_grid
from specgrove_bench.gpu_check.options import Options, parse
from specgrove_bench.gpu_check.report import GpuReport
from specgrove_kernels.backend import KernelsUnavailable, has_triton, reference_kernels, triton_kernels

CANNOT_RUN = 2


def main(argv: Sequence[str], *, has_gpu: bool | None = None) -> int:
    """0 when every comparison holds, 1 when one does not, 2 when this machine cannot run the check.

    `has_gpu` None looks for one.
    """
    options = parse(argv)
    if not has_triton():
        print(f"gpu_check needs Triton: {KernelsUnavailable.__doc__}", file=sys.stderr)
        return CANNOT_RUN
    if options.interpret:
        # Triton reads the variable while it is imported: the interpreter gets a process of its own.
        entry = [sys.executable, "-m", "specgrove_bench.gpu_check.interpreted", str(options.out)]
        paths = os.pathsep.join(sys.path)  # the child finds what this process finds, however it was told
        return subprocess.run(["env", "TRITON_INTERPRET=1", f"PYTHONPATH={paths}", *entry], check=False).returncode
    if not (torch.cuda.is_available() if has_gpu is None else has_gpu):
        print("gpu_check found no NVIDIA GPU; --interpret checks small shapes on the CPU.", file=sys.stderr)
        return CANNOT_RUN
    report = check_on_gpu(options)
    return finish(report, options)


def finish(report: GpuReport, options: Options) -> int:
    """Print and write the report; the exit status says whether everything passed."""
    print(report.to_markdown())
    report.write(options.out)
    return 0 if report.passed else 1


def check_interpreted() -> GpuReport:
    """The small grid on the CPU; the process must have been started with TRITON_INTERPRET=1."""
    from specgrove_bench.gpu_check.seam import check_seam

    kernels, device = triton_kernels(), torch.device("cpu")
    outcomes = [*check_all(kernels, small_grid(), device), *check_seam(kernels, device)]
    return GpuReport("the CPU, in Triton's interpreter", torch.__version__, version("triton"), outcomes)


def check_on_gpu(options: Options) -> GpuReport:
    """Checks over the full grid, then timings unless only checks are wanted or one failed."""
    from specgrove_bench.gpu_check.seam import check_seam

    device, kernels = torch.device("cuda"), triton_kernels()
    outcomes = [*check_all(kernels, full_grid(), device), *check_seam(kernels, device)]
    name = torch.cuda.get_device_name(device)
    checked = GpuReport(name, torch.__version__, version("triton"), outcomes)
    if options.checks_only or not checked.passed:
        return checked
    from specgrove_bench.gpu_check.llama_step import llama_8b
    from specgrove_bench.gpu_check.step_timing import time_steps
    from specgrove_bench.gpu_check.timing import measured_bytes_per_s, time_attention, time_others

    bytes_per_s = measured_bytes_per_s(device)
    return GpuReport(
        name,
        checked.torch,
        checked.triton,
        outcomes,
        bytes_per_s,
        [
            *time_attention(kernels, device, bytes_per_s),
            *time_others(kernels, reference_kernels(), device, bytes_per_s),
        ],
        options.acceptance.by_depth,
        time_steps(llama_8b(), kernels, device, bytes_per_s, options.acceptance),
    )
