"""The drafter as a process: health, signals, a long pause, wrong settings."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specgrove.rpc import AioRpcError, open_channel
from support.draft_streams import DraftVerifier
from support.tiny_models import write_tiny_model

# Each of these processes imports torch and transformers first.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCES = ("services/common", "services/drafter", "kernels")
START_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("ssm"))


@pytest.fixture
async def verifier() -> AsyncIterator[DraftVerifier]:
    fake = DraftVerifier()
    await fake.start()
    yield fake
    await fake.stop()


async def launch(arguments: Sequence[str]) -> asyncio.subprocess.Process:
    paths = os.pathsep.join(str(ROOT / source) for source in SOURCES)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPECGROVE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "specgrove_drafter",
        *arguments,
        env=environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def running(folder: Path, verifier: DraftVerifier, *extra: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await launch(
        ["--ssm", str(folder), "--verifiers", verifier.address, "--weights", "float32", "--kv-tokens", "1024"]
        + (["--port", "0"] if "--port" not in extra else [])
        + ["--metrics-port", "0", *extra]
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.communicate()


async def test_a_long_pause_needs_no_restart_and_sigterm_ends_it_in_good_order(
    folder: Path, verifier: DraftVerifier
) -> None:
    async with running(folder, verifier) as process:
        stream = await verifier.stream(START_TIMEOUT_S)
        tokens = [5, 6, 7]
        stream.open(1, tokens)
        await stream.tree()
        process.send_signal(signal.SIGSTOP)
        for token_id in range(20, 40):
            stream.commit(1, len(tokens), [token_id])
            tokens.append(token_id)
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGCONT)
        resumed_s = time.monotonic()
        while (await stream.tree()).base_len != len(tokens):
            pass
        assert time.monotonic() - resumed_s < 2.0
        process.terminate()
        async with asyncio.timeout(5):
            await stream.is_ended.wait()
        _, errors = await process.communicate()
        assert process.returncode == 0
        assert b"Traceback" not in errors


async def test_it_gets_ready_without_any_verifier_or_redis(folder: Path, verifier: DraftVerifier) -> None:
    await verifier.stop()
    port, metrics_port = free_port(), free_port()
    arguments = ["--port", str(port), "--metrics-port", str(metrics_port)]
    async with running(folder, verifier, *arguments, "--redis-url", f"redis://127.0.0.1:{free_port()}/0"):
        channel = open_channel(f"127.0.0.1:{port}")
        health = health_pb2_grpc.HealthStub(channel)
        seen: list[int] = []
        async with asyncio.timeout(START_TIMEOUT_S):
            while not seen or seen[-1] != health_pb2.HealthCheckResponse.SERVING:
                await asyncio.sleep(0.05)
                try:
                    seen.append((await health.Check(health_pb2.HealthCheckRequest(), timeout=1.0)).status)
                except AioRpcError:
                    continue
        await channel.close()
        assert seen[0] == health_pb2.HealthCheckResponse.NOT_SERVING  # the models were still being loaded
        page = await asyncio.to_thread(_get, f"http://127.0.0.1:{metrics_port}/metrics")
        assert re.search(r"^specgrove:drafter_connections 0\.0$", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--verifier", "x:1"], [b"did you mean --verifiers"]),
        (["--expansion", "0,1", "--ssm", "x"], [b"--expansion", b"nobody to draft for"]),
        (["--ssm", "/nowhere", "--verifiers", "x:1", "--port", "0", "--metrics-port", "0"], [b"/nowhere"]),
    ],
)
async def test_wrong_settings_end_it_with_a_reason_and_no_traceback(arguments: list[str], words: list[bytes]) -> None:
    process = await launch(arguments)
    _, errors = await process.communicate()
    assert process.returncode in (1, 2)
    assert b"Traceback" not in errors
    for word in words:
        assert word in errors


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read().decode())
