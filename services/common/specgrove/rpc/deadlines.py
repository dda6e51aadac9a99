"""A deadline for every unary call, also for the one whose author forgot it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio

DEFAULT_UNARY_TIMEOUT_S = 10.0


class UnaryDeadline(grpc.aio.UnaryUnaryClientInterceptor):
    """Gives a unary call that has no timeout the default one."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Any], Any],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        if client_call_details.timeout is None:
            client_call_details = client_call_details._replace(timeout=self._timeout_s)
        return await continuation(client_call_details, request)
