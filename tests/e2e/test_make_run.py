"""`make run ARGS=--once` as a user types it: everything starts, one prompt is answered, everything ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.live_cluster import CACHE_DIR, target_folder
from support.prompts import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
_ROOTS = (
    "services/common",
    "services/drafter",
    "services/verifier",
    "services/gateway",
    "kernels",
    "deploy/local",
)


@pytest.mark.parametrize(
    "flags", [(), ("--drafters", "2", "--verifiers", "2")], ids=["one of each", "two drafters and two verifiers"]
)
def test_demo_answers_one_prompt_exactly_and_ends(flags: tuple[str, ...], tmp_path: Path) -> None:
    target_folder()  # fetched outside the clock of the demo
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / folder) for folder in _ROOTS)
    argv = [sys.executable, "-m", "specgrove_local", "--once", "--max-tokens", "32", "--cache-dir", str(CACHE_DIR)]
    argv += ["--run-dir", str(tmp_path / "run"), *flags]
    ended = subprocess.run(
        argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"answers identical\s+yes", ended.stdout), ended.stdout
    assert re.search(r"committed tokens per step\s+\d", ended.stdout), ended.stdout
