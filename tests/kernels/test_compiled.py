"""The door to Numba: what is kept on disk is known by everything it was made from."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("numba")
import specgrove_kernels.cpu
from specgrove_kernels.cpu.compiled import told_after

_CALLER = """
from specgrove_kernels.cpu.callee import answer
from specgrove_kernels.cpu.compiled import compiled


@compiled
def ask():
    return answer()


print(ask(), sum(ask.stats.cache_hits.values()))
"""


def _answer(number: int) -> str:
    return f"from specgrove_kernels.cpu.compiled import compiled\n\n\n@compiled\ndef answer():\n    return {number}\n"


def test_kept_code_is_not_used_when_what_it_calls_has_changed(tmp_path: Path) -> None:
    package = tmp_path / "specgrove_kernels" / "cpu"
    source = Path(specgrove_kernels.cpu.__file__).parent
    package.mkdir(parents=True)
    for name in ("__init__.py", "compiled.py"):
        shutil.copy(source / name, package)
    (package.parent / "__init__.py").touch()
    (package / "caller.py").write_text(_CALLER)

    def asked() -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
        command = [sys.executable, "-m", "specgrove_kernels.cpu.caller"]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    (package / "callee.py").write_text(_answer(1))
    assert [asked(), asked()] == ["1 0", "1 1"]
    (package / "callee.py").write_text(_answer(22))
    assert asked() == "22 0"


def test_who_waits_long_is_told_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with told_after(10.0, logging.getLogger(), "slow"):
        pass
    with told_after(0.01, logging.getLogger(), "very slow"):
        time.sleep(0.2)
    assert caplog.messages == ["very slow"]
