"""A gRPC server as every service of specgrove runs it."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from specgrove.errors import ConfigError
from specgrove.rpc import health
from specgrove.rpc.calls import CallKind
from specgrove.rpc.guard import CallGuard
from specgrove.rpc.health import HealthServicer
from specgrove.rpc.limits import DEFAULT_MAX_MESSAGE_BYTES, server_options
from specgrove.rpc.reflection import add_reflection

_log = logging.getLogger(__name__)

DEFAULT_MAX_CALLS = 1024
DEFAULT_MAX_UNARY_S = 60.0
CUT_S = 0.5  # what handlers get to end once they are cut

AddToServer = Callable[[Any, grpc.aio.Server], None]


class GrpcServer:
    """Serves servicers on host:port with health v1, reflection, error mapping, caps, keep-alive and a graceful stop.

        server = GrpcServer("0.0.0.0", 50051)
        server.add(servicer, add_VerifierServiceServicer_to_server, "specgrove.proto.v1.VerifierService")
        port = await server.start()
        await wait_for_signal()
        await server.stop(grace_s=20)

    Health is SERVING from the start unless `set_serving(False)` came before. Handlers raise SpecgroveError.
    """

    def __init__(
        self,
        host: str,
        port: int,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        *,
        max_calls: int = DEFAULT_MAX_CALLS,
        unary_timeout_s: float = DEFAULT_MAX_UNARY_S,
    ) -> None:
        self._host = host
        self._requested_port = port
        self._options = server_options(max_message_bytes)
        self._max_calls = max_calls
        self._unary_timeout_s = unary_timeout_s
        self._services: list[tuple[Any, AddToServer, str]] = []
        self._is_serving = True
        self._running: _Running | None = None

    def add(self, servicer: Any, add_to_server: AddToServer, service_name: str) -> None:
        """Offers `servicer` under its full name (package and service); before `start` only."""
        if self._running is not None:
            raise RuntimeError("add services before start")
        self._services.append((servicer, add_to_server, service_name))

    async def start(self) -> int:
        """The bound port, once the server listens. ConfigError that names the port if it cannot be bound."""
        if self._running is not None:
            raise RuntimeError("a server is started once")
        guard = CallGuard(self._max_calls, self._unary_timeout_s)
        server = grpc.aio.server(interceptors=[guard], options=self._options)
        names = [name for _, _, name in self._services]
        for servicer, add_to_server, _ in self._services:
            add_to_server(servicer, server)
        health_servicer = HealthServicer(names, is_serving=self._is_serving)
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        add_reflection(server, [*names, health.SERVICE_NAME])
        port = _bind(server, self._host, self._requested_port)
        await server.start()
        self._running = _Running(server, guard, health_servicer, port)
        _log.info("gRPC server listens", extra={"address": _address(self._host, port), "services": names})
        return port

    @property
    def port(self) -> int:
        """The bound port; RuntimeError before `start`."""
        if self._running is None:
            raise RuntimeError("the server has not been started")
        return self._running.port

    @property
    def is_draining(self) -> bool:
        return self._running is not None and self._running.guard.is_draining

    def set_serving(self, is_serving: bool) -> None:
        """What health checks answer, for the whole server and each of its services. May be called at any time."""
        self._is_serving = is_serving
        if self._running is not None:
            self._running.health.set_serving(is_serving)

    async def stop(self, grace_s: float) -> None:
        """Ends the server in order: NOT_SERVING, no new calls, `grace_s` for the running ones, then a cut.

        It waits for unary calls and server streams only: bidirectional streams and health watches last as long as their
        peers, serve the others until the end and are then cut with UNAVAILABLE. Returns half a second after
        `grace_s` at the latest, at once if nothing runs; may be called again.
        """
        if self._running is None:
            return
        await self._running.stop(grace_s)


class _Running:
    """The parts that exist only while a server runs."""

    def __init__(self, server: grpc.aio.Server, guard: CallGuard, health_servicer: HealthServicer, port: int) -> None:
        self.server = server
        self.guard = guard
        self.health = health_servicer
        self.port = port

    async def stop(self, grace_s: float) -> None:
        calls = self.guard.calls
        self.health.drain()
        self.guard.is_draining = True
        await calls.drained(frozenset({CallKind.FINITE}), grace_s)
        self.health.close()
        num_unfinished = calls.cut()
        if num_unfinished:
            _log.warning("cut calls that did not end within the grace", extra={"num_calls": num_unfinished})
        await self.server.stop(CUT_S)


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    try:
        _check_free(host, port)
        return int(server.add_insecure_port(_address(host, port)))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError([f"cannot listen on {_address(host, port)}: {reason}"]) from error


def _check_free(host: str, port: int) -> None:
    """Raises the OSError that says why host:port cannot be bound.

    gRPC itself keeps the reason to itself, and where a name has several addresses (localhost: ::1 and 127.0.0.1) it is
    content with one of them, while clients may dial the other and reach somebody else.
    """
    refused: OSError | None = None
    is_free = False
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
            refused = error
        else:
            is_free = True
    if refused is not None and not is_free:
        raise refused


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
