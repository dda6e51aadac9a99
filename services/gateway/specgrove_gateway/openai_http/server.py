"""uvicorn on the loop that gRPC runs on, without its signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from specgrove.errors import ConfigError

_BACKLOG = 1024
_MIN_MAX_CONNECTIONS = 2048
_IDLE_CONNECTION_S = 75  # clients that reuse connections expect about a minute


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the composition root."""
        yield


class HttpServer:
    """Serves `app` on host:port; port 0 takes a free one. Has room for `max_requests` and as many connections again."""

    def __init__(self, app: ASGIApp, host: str, port: int, drain_s: float, *, max_requests: int) -> None:
        self._host = host
        self._port = port
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,  # our JSON lines, set up by the composition root
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=max(_MIN_MAX_CONNECTIONS, 2 * max_requests),  # idle and slow clients count too
                timeout_keep_alive=_IDLE_CONNECTION_S,
                timeout_graceful_shutdown=max(1, round(drain_s)),
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """The bound port. Raises ConfigError when the address cannot be bound."""
        try:
            listener = socket.create_server(
                (self._host, self._port), family=_family(self._host), backlog=_BACKLOG, reuse_port=False
            )
        except OSError as error:
            raise ConfigError([f"cannot serve HTTP on {self._host}:{self._port}: {error.strerror or error}"]) from error
        port: int = listener.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="http server")
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise ConfigError([f"the HTTP server on {self._host}:{self._port} ended at once; see the log"])
            await asyncio.sleep(0.01)
        return port

    async def stop(self) -> None:
        """Accept nothing more, let running answers end for `drain_s`, then cut them."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._serving = None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
