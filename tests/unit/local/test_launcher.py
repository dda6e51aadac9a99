"""`python -m specgrove_local` as a user runs it, on stand-in services: output, exit codes, signals, no orphans."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specgrove_local.ports import PortPicker

Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").touch()
    (folder / "tokenizer.json").touch()
    return folder


@pytest.fixture
def launch(tmp_path: Path, model_folder: Path, stand_in_environment: dict[str, str]) -> Iterator[Launch]:
    """Starts the launcher with flags and misbehaving services; whatever still runs afterwards is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str, **behaviours: str) -> subprocess.Popen[str]:
        behaving = {f"STAND_IN_{kind.upper()}": behaviour for kind, behaviour in behaviours.items()}
        inherited = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
        child = subprocess.Popen(
            [sys.executable, "-m", "specgrove_local", "--model", str(model_folder), *flags],
            cwd=tmp_path,
            env={**inherited, **stand_in_environment, **behaving},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def read_until(child: subprocess.Popen[str], text: str) -> str:
    assert child.stdout is not None
    seen = ""
    for line in child.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"the launcher ended before it said {text!r}:\n{seen}")


def await_gone(pids: list[int], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not any(_is_alive(pid) for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"still alive: {[pid for pid in pids if _is_alive(pid)]}")


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_once_prints_the_answer_its_figures_and_the_comparison_then_ends(launch: Launch, tmp_path: Path) -> None:
    child = launch("--once", "--prompt", "Why is the sea salty?")
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0, output
    assert "> Why is the sea salty?\n\nRivers carry salt.\n\n[stop]" in output
    assert re.search(r"committed tokens per step +2\.00 +1\.00", output)
    assert re.search(r"time per token +10\.0 ms +20\.0 ms", output)
    assert "1: 100% (2/2)  2: 0% (0/2)" in output
    assert re.search(r"answers identical +yes, all 4 tokens", output)
    assert not list((tmp_path / ".run").glob("*.log"))


def test_logs_stay_when_asked_to(launch: Launch, tmp_path: Path) -> None:
    child = launch("--once", "--keep-logs")
    assert child.wait(60) == 0
    names = {log.name for log in (tmp_path / ".run").glob("*.log")}
    assert names == {"redis.log", "verifier-0.log", "drafter-0.log", "gateway.log"}


def test_an_answer_changed_by_speculation_is_a_failure(launch: Launch) -> None:
    child = launch("--once", gateway="inexact")
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "NO: they differ from token 1 on" in output
    assert "speculation changed the answer" in output


def test_without_speculation_no_drafter_is_started(launch: Launch) -> None:
    child = launch("--once", "--no-speculation")
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0, output
    assert "drafter" not in output
    assert "Rivers carry salt." in output


def test_a_service_that_dies_shows_its_last_words_and_fails(launch: Launch, tmp_path: Path) -> None:
    child = launch("--once", verifier="dies")
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "verifier-0 exited with status 1" in output
    assert "the model folder is on fire" in output
    assert (tmp_path / ".run" / "verifier-0.log").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_then_stops_every_child_and_exits_with_0(launch: Launch, number: int) -> None:
    child = launch("--http-port", str(PortPicker().any_free()))
    output = read_until(child, "serving; Ctrl-C stops everything")
    assert re.search(r"curl -N http://127\.0\.0\.1:\d+/v1/chat/completions", output)
    pids = children_of(child.pid)
    assert len(pids) == 4
    child.send_signal(number)
    assert child.wait(20) == 0
    await_gone(pids)


def test_no_child_outlives_a_killed_launcher(launch: Launch) -> None:
    child = launch("--http-port", str(PortPicker().any_free()))
    read_until(child, "serving")
    pids = children_of(child.pid)
    assert len(pids) == 4
    child.kill()
    child.wait(10)
    await_gone(pids)


@pytest.mark.faults
def test_it_outlives_a_drafter_and_not_the_gateway(launch: Launch) -> None:
    child = launch("--http-port", str(PortPicker().any_free()))
    read_until(child, "serving")
    _, _, drafter, gateway = sorted(children_of(child.pid))
    os.kill(drafter, signal.SIGKILL)
    read_until(child, "drafter-0 was ended by SIGKILL; going on without it")
    os.kill(gateway, signal.SIGKILL)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 1
    assert "gateway was ended by SIGKILL" in output


def test_wrong_flags_are_all_named_at_once(launch: Launch) -> None:
    child = launch("--verifiers", "none", "--drafter", "2")
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 2
    assert "--verifiers must be a whole number" in output
    assert "unknown flag --drafter (did you mean --drafters?)" in output
