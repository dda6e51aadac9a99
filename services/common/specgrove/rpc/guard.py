"""The frame around every handler: errors become statuses, calls are counted, cut, logged and named in log lines."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from specgrove.errors import InvalidInput, Overloaded, PeerUnavailable, SpecgroveError
from specgrove.rpc.calls import ActiveCall, ActiveCalls, CallKind
from specgrove.rpc.status import error_from_rpc, rpc_status_of
from specgrove.telemetry.log_context import log_context

_log = logging.getLogger(__name__)

# Answered at any load and while draining: probes and people must be able to look inside.
_ALWAYS_ANSWERED = ("/grpc.health.", "/grpc.reflection.")
REQUEST_ID_KEY = "x-request-id"
SESSION_ID_KEY = "x-session-id"
_MAX_ID_CHARS = 256

Handler = Callable[[Any, Any], Any]


class CallGuard(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server.

    `max_calls` bounds the calls in progress (health and reflection do not count), `unary_timeout_s` a unary call whose
    client has set no deadline, or a longer one.
    """

    def __init__(self, max_calls: int, unary_timeout_s: float) -> None:
        self.calls = ActiveCalls()
        self.is_draining = False
        self._max_calls = max_calls
        self._unary_timeout_s = unary_timeout_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        return None if handler is None else self._wrapped(handler, handler_call_details.method)

    def _wrapped(self, handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
        is_one_request = not handler.request_streaming
        coders = {
            # The messages of a request stream are read one by one, inside the handler's frame already.
            "request_deserializer": _tolerant(handler.request_deserializer)
            if is_one_request
            else handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.request_streaming and handler.response_streaming:
            run = self._stream_runner(handler.stream_stream, method, CallKind.OPEN_ENDED)
            return grpc.stream_stream_rpc_method_handler(run, **coders)
        if handler.response_streaming:
            kind = CallKind.WATCH if method.startswith(_ALWAYS_ANSWERED) else CallKind.FINITE
            run = self._stream_runner(handler.unary_stream, method, kind)
            return grpc.unary_stream_rpc_method_handler(run, **coders)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(self._unary_runner(handler.stream_unary, method), **coders)
        return grpc.unary_unary_rpc_method_handler(self._unary_runner(handler.unary_unary, method), **coders)

    def _unary_runner(self, inner: Handler, method: str) -> Handler:
        async def run(request: Any, context: grpc.aio.ServicerContext) -> Any:
            async with self._guarded(method, context, CallKind.FINITE):
                _refuse_unreadable(request)
                try:
                    async with asyncio.timeout(self._unary_timeout_s) as limit:
                        return await inner(request, context)
                except TimeoutError:
                    if not limit.expired():
                        raise
                    details = f"not finished within {self._unary_timeout_s:g} s, the most that this server allows"
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, details)

        return run

    def _stream_runner(self, inner: Handler, method: str, kind: CallKind) -> Handler:
        async def run(request: Any, context: grpc.aio.ServicerContext) -> None:
            async with self._guarded(method, context, kind):
                _refuse_unreadable(request)
                if not inspect.isasyncgenfunction(inner):
                    await inner(request, context)  # it writes to the context itself
                    return
                # Written here rather than yielded on: when the client leaves, the cancellation arrives in this frame
                # and the handler's generator is closed at once, not whenever it is garbage-collected.
                async with aclosing(inner(request, context)) as responses:
                    async for response in responses:
                        await context.write(response)

        return run

    @asynccontextmanager
    async def _guarded(self, method: str, context: grpc.aio.ServicerContext, kind: CallKind) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None
        is_counted = not method.startswith(_ALWAYS_ANSWERED)
        call = ActiveCall(method=method, task=task, kind=kind, is_counted=is_counted)
        outcome = "OK"
        with log_context(**_ids_of(context)):
            try:
                if is_counted:
                    self._admit()
                self.calls.enter(call)
                yield
            except grpc.aio.AbortError:
                outcome = "aborted by the handler"
                raise
            except asyncio.CancelledError:
                outcome = "CANCELLED"
                if not call.is_cut:
                    raise
                outcome = "UNAVAILABLE"
                task.uncancel()
                await _abort(context, PeerUnavailable("this server is shutting down; call another one"))
            except Exception as exception:
                # A call to another pod that failed inside the handler keeps its meaning on the way out.
                error = error_from_rpc(exception) if isinstance(exception, grpc.aio.AioRpcError) else exception
                outcome = rpc_status_of(error).code.name
                if not isinstance(error, SpecgroveError) and not context.cancelled():
                    _log.exception("a call failed unexpectedly", extra={"method": method})
                await _abort(context, error)
            finally:
                self.calls.leave(call)
                _log.debug(
                    "call finished",
                    extra={
                        "method": method,
                        "outcome": outcome,
                        "elapsed_s": round(call.elapsed_s(), 6),
                        "peer": context.peer(),
                    },
                )

    def _admit(self) -> None:
        if self.is_draining:
            raise PeerUnavailable("this server is shutting down; call another one")
        if self.calls.num_counted >= self._max_calls:
            raise Overloaded(f"{self._max_calls} calls are in progress here; try again later or elsewhere")


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands in for a request whose bytes are no message of its type."""

    reason: str


def _tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """gRPC answers UNKNOWN, with a traceback in the log, when a deserializer raises; so it must not raise."""

    def read(message: bytes) -> Any:
        try:
            return message if deserialize is None else deserialize(message)
        except Exception as error:  # protobuf's DecodeError; whatever it is, the bytes are the client's
            return _Unreadable(str(error))

    return read


def _refuse_unreadable(request: Any) -> None:
    if isinstance(request, _Unreadable):
        raise InvalidInput(f"the request cannot be read as a message of its type: {request.reason}")


async def _abort(context: grpc.aio.ServicerContext, error: BaseException) -> None:
    """Ends the call with the status of `error`; a call that is already over stays as it is."""
    status = rpc_status_of(error)
    try:
        await context.abort(status.code, status.details, status.trailing_metadata)
    except grpc.aio.UsageError:
        _log.debug("the call was over before its error could be sent", exc_info=error)


def _ids_of(context: grpc.aio.ServicerContext) -> dict[str, str | None]:
    """The ids that the caller sent along, for the log lines of this call."""
    sent = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return {
        "request_id": sent.get(REQUEST_ID_KEY, "")[:_MAX_ID_CHARS] or None,
        "session_id": sent.get(SESSION_ID_KEY, "")[:_MAX_ID_CHARS] or None,
    }
