"""The gateway as a process: settings, and an end that lets running answers finish."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import httpx

from specgrove.text import Tokenizer
from support.fake_verifier import FakeVerifier
from support.tiny_tokenizer import write_tiny_tokenizer
from support.waiting import until

ANSWER = "Hello world, this is a small text about oaks and beeches in a specgrove."


async def start_gateway(*arguments: str) -> asyncio.subprocess.Process:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPECGROVE_")}
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specgrove_gateway", *arguments), env=environ, stderr=asyncio.subprocess.PIPE
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def test_wrong_settings_end_the_process_with_every_problem() -> None:
    process = await start_gateway("--http-port", "70000", "--max-running", "none", "--no-such-thing")
    _, stderr = await process.communicate()
    assert process.returncode == 2
    for name in (b"--http-port", b"--max-running", b"--no-such-thing"):
        assert name in stderr


async def test_sigterm_lets_a_running_answer_finish_and_ends_with_zero(tmp_path: Path) -> None:
    folder = write_tiny_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(folder)
    verifier = FakeVerifier(tokenizer, lambda prompt, seed: [*tokenizer.encode(ANSWER), 2])
    verifier.behaviour.step_s = 0.1
    await verifier.start()
    port = free_port()
    process = await start_gateway(
        *("--tokenizer", str(folder), "--verifiers", verifier.address, "--http-port", str(port), "--grpc-port", "0")
    )
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as http:

        async def is_ready() -> bool:
            try:
                return (await http.get("/ready")).status_code == 200
            except httpx.TransportError:
                return False

        await until(is_ready, timeout_s=30)
        asking = asyncio.create_task(http.post("/v1/completions", json={"prompt": "Hi", "stream": False}))
        await until(lambda: verifier.requests)
        process.send_signal(signal.SIGTERM)
        assert (await asking).json()["choices"][0]["text"] == ANSWER
    _, stderr = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 0, stderr.decode()
    assert b"draining" in stderr
    await verifier.stop()
