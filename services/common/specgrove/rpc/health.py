"""The standard health service (grpc.health.v1): Check, List and Watch.

The package's own asyncio servicer has a coroutine for setting a status and keeps watchers open on shutdown; this one is
set from plain code and ends its watches when the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
WHOLE_SERVER = ""  # the name under which probes ask for the server as such

_Status = health_pb2.HealthCheckResponse.ServingStatus


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Answers for the whole server and each of `service_names`; all share one status."""

    def __init__(self, service_names: Iterable[str], *, is_serving: bool) -> None:
        self._service_names = frozenset({WHOLE_SERVER, *service_names})
        self._is_serving = is_serving
        self._is_draining = False
        self._is_closed = False
        self._changed = asyncio.Event()

    def set_serving(self, is_serving: bool) -> None:
        """Changes the status and tells the watchers."""
        self._is_serving = is_serving
        self._wake()

    def drain(self) -> None:
        """NOT_SERVING from now on, whatever `set_serving` says later; watchers are told."""
        self._is_draining = True
        self._wake()

    def close(self) -> None:
        """Ends the watches."""
        self._is_closed = True
        self._wake()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._service_names:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def List(
        self, request: health_pb2.HealthListRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse(
            statuses={
                name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in sorted(self._service_names)
            }
        )

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and after each change; an unknown service is reported as such and watched on."""
        last: int | None = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status != last:
                last = status
                yield health_pb2.HealthCheckResponse(status=status)
                continue  # it may have changed while the client took its time
            if self._is_closed:
                return
            await changed.wait()

    def _status(self, service_name: str) -> int:
        if service_name not in self._service_names:
            return int(_Status.SERVICE_UNKNOWN)
        return int(_Status.SERVING if self._is_serving and not self._is_draining else _Status.NOT_SERVING)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
