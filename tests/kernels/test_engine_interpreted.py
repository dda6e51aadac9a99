"""The whole engine on the Triton kernels, in the interpreter: the tokens of plain torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specgrove_kernels.backend import has_triton

if has_triton():

    @pytest.mark.slow
    @pytest.mark.timeout(900)  # seconds of work; minutes where other processes have the cores
    def test_the_engine_on_interpreted_kernels_gives_the_tokens_of_plain_torch() -> None:
        """Greedy and sampled, trees of several sessions, preemption, decode steps recorded; two decoders."""
        script = Path(__file__).with_name("engine_in_interpreter.py")
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=880,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "preemption: tokens equal" in done.stdout
