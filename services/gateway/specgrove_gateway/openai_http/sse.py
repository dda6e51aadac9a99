"""Answers that end when their client leaves: a server-sent event stream, and waiting for a whole answer.

Starlette's own streaming response notices a vanished client at its next write; here the connection is watched while
nothing is written, because the next token may be seconds away and somebody computes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from specgrove.errors import SpecgroveError
from specgrove.telemetry import log_context
from specgrove_gateway.openai_http.errors import error_body

_log = logging.getLogger(__name__)
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would collect the stream
}
_ResultT = TypeVar("_ResultT")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Answering:
    """Runs a request's work only as long as its client is there."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    async def unless_gone(self, work: Awaitable[_ResultT]) -> _ResultT:
        """The result of `work`; cancels it and raises ClientGone when the client disconnects first."""
        working = asyncio.ensure_future(work)
        watching = asyncio.create_task(self._wait_for_disconnect())
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise ClientGone
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class EventStream:
    """An ASGI response that sends `chunks` as server-sent events, then `[DONE]`.

    Comments keep the connection alive after `heartbeat_s` of silence. An error after the start becomes an event of its
    own, then the stream ends without `[DONE]`.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[dict[str, Any], None],
        headers: Mapping[str, str],
        heartbeat_s: float,
        log_fields: Mapping[str, str],
    ) -> None:
        self._chunks = chunks
        self._headers = {**_HEADERS, **headers}
        self._heartbeat_s = heartbeat_s
        self._log_fields = log_fields  # it runs outside of the endpoint that made it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with log_context(**self._log_fields), contextlib.suppress(ClientGone, OSError):  # nobody is left to tell
            await Answering(receive).unless_gone(self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        writer = _Writer(send)
        heartbeat = asyncio.create_task(self._beat(writer))
        try:
            await self._send_chunks(writer)
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_chunks(self, writer: _Writer) -> None:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    await writer.write(_event(json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))))
        except OSError:
            raise
        except Exception as error:
            if not isinstance(error, SpecgroveError):
                _log.exception("an answer broke off")
            await writer.write(_event(json.dumps(error_body(error))))
        else:
            await writer.write(_event("[DONE]"))

    async def _beat(self, writer: _Writer) -> None:
        while True:
            silent_s = writer.silent_s
            if silent_s >= self._heartbeat_s:
                await writer.write(b": still here\n\n")
            else:
                await asyncio.sleep(self._heartbeat_s - silent_s)


class _Writer:
    """Writes whole events, one at a time, and knows how long ago the last one was."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = asyncio.Lock()
        self._last_at = asyncio.get_running_loop().time()

    @property
    def silent_s(self) -> float:
        return asyncio.get_running_loop().time() - self._last_at

    async def write(self, event: bytes) -> None:
        async with self._lock:
            self._last_at = asyncio.get_running_loop().time()
            await self._send({"type": "http.response.body", "body": event, "more_body": True})


def _event(payload: str) -> bytes:
    return f"data: {payload}\n\n".encode()
