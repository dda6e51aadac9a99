"""Which implementation a device gets, and that nobody loads Triton unasked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specgrove_kernels.backend import has_triton, kernels_for, reference_kernels


def test_a_cpu_gets_the_references() -> None:
    assert kernels_for(torch.device("cpu")) == reference_kernels()


def test_the_references_do_not_load_triton() -> None:
    code = (
        "import sys, torch; loaded = 'triton' in sys.modules; from specgrove_kernels.backend import *; "
        "reference_kernels(); kernels_for(torch.device('cpu')); has_triton(); "
        "sys.exit('triton' in sys.modules and not loaded)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


if has_triton():

    @pytest.mark.slow
    def test_every_kernel_compiles_for_nvidia(tmp_path: Path) -> None:
        """Triton's typing rules hold on any machine; the interpreter knows none of them."""
        variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        script = Path(__file__).with_name("compile_for_nvidia.py")
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**variables, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=290,
            check=False,
        )
        assert done.returncode == 0, done.stderr
