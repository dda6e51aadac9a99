"""Each image holds all the code its service imports: what the Dockerfile copies, on the path it sets, no more."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def dockerfile(service: str) -> str:
    return (ROOT / "services" / service / "Dockerfile").read_text().replace("\\\n", " ")


@pytest.mark.parametrize("service", ["verifier", "drafter", "gateway"])
def test_the_service_starts_from_its_copied_files_alone(service: str, tmp_path: Path) -> None:
    text = dockerfile(service)
    for line in text.splitlines():
        if line.startswith("COPY ") and "--from=" not in line and " /app/" in line:
            source, destination = line.split()[-2:]
            copied = tmp_path / destination.lstrip("/")
            shutil.copytree(ROOT / source, copied, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    [path] = [word.partition("=")[2] for word in text.split() if word.startswith("PYTHONPATH=")]
    roots = [str(tmp_path / part.lstrip("/")) for part in path.split(":")]
    # -S: without site there is no editable install that would lend the rest of the repository.
    done = subprocess.run(
        [sys.executable, "-S", "-m", f"specgrove_{service}", "--help"],
        env={"PYTHONPATH": ":".join([*roots, sysconfig.get_path("purelib")]), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"specgrove {service}" in done.stdout


@pytest.mark.parametrize(
    ("extra", "wanted", "unwanted"), [("models", "torch", "starlette"), ("gateway", "starlette", "torch")]
)
def test_an_image_installs_the_requirements_of_its_service(extra: str, wanted: str, unwanted: str) -> None:
    done = subprocess.run(
        [sys.executable, "deploy/requirements.py", extra], cwd=ROOT, capture_output=True, text=True, check=True
    )
    requirements = done.stdout.splitlines()
    assert any(line.startswith(wanted) for line in requirements)
    assert not any(line.startswith(unwanted) for line in requirements)
    assert any(line.startswith("grpcio>") for line in requirements)
