"""The client for an event loop. Make it where the loop runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Unpack

from specgrove.client.attempts import Attempts, typed
from specgrove.client.blocking import DEFAULT_RETRY_S, DEFAULT_TIMEOUT_S, DEFAULT_UNARY_TIMEOUT_S
from specgrove.client.requests import (
    GenerateOptions,
    Message,
    detokenize_request,
    generate_request,
    tokenize_request,
)
from specgrove.client.responses import chunk_from_proto, models_from_proto, tokens_from_proto
from specgrove.client.values import Answer, Chunk, Collected, Model, Tokens
from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc
from specgrove.rpc import DEFAULT_MAX_MESSAGE_BYTES, EOF, AioRpcError, open_channel


class AsyncClient:
    """As `Client`, with coroutines; cancelling a task cancels what it waits for, down to the verifier."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        unary_timeout_s: float = DEFAULT_UNARY_TIMEOUT_S,
        retry_s: float = DEFAULT_RETRY_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._channel = open_channel(address, max_message_bytes)
        self._stub: Any = gateway_pb2_grpc.GatewayServiceStub(self._channel)
        self._timeout_s = timeout_s
        self._unary_timeout_s = unary_timeout_s
        self._retry_s = retry_s

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what runs and hang up."""
        await self._channel.close()

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """The whole answer to one of `prompt`, `messages` and `token_ids`."""
        async with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            return await stream.answer()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncAnswerStream:
        """The answer as it comes. Leaving its `async with` block, or `aclose()`, cancels the generation."""
        request = generate_request(prompt, messages, token_ids, options)
        timeout_s = options.get("timeout_s")
        attempts = Attempts(self._timeout_s if timeout_s is None else timeout_s, self._retry_s)
        return AsyncAnswerStream(lambda: self._stub.Generate(request, timeout=attempts.remaining_s), attempts)

    async def models(self) -> list[Model]:
        """What the gateway serves."""
        return models_from_proto(await self._ask(self._stub.ListModels, gateway_pb2.ListModelsRequest()))

    async def version(self) -> str:
        """The gateway's version of specgrove."""
        listed: gateway_pb2.ListModelsResponse = await self._ask(self._stub.ListModels, gateway_pb2.ListModelsRequest())
        return listed.version

    async def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        model: str | None = None,
        add_special_tokens: bool | None = None,
        add_generation_prompt: bool | None = None,
    ) -> Tokens:
        """The tokens that a generation would read for `prompt` or `messages`."""
        options = {
            "model": model,
            "add_special_tokens": add_special_tokens,
            "add_generation_prompt": add_generation_prompt,
        }
        return tokens_from_proto(await self._ask(self._stub.Tokenize, tokenize_request(prompt, messages, options)))

    async def detokenize(self, token_ids: Sequence[int], *, model: str | None = None) -> str:
        """The text of `token_ids`, control tokens included."""
        answer: gateway_pb2.DetokenizeResponse = await self._ask(
            self._stub.Detokenize, detokenize_request(token_ids, model)
        )
        return answer.text

    async def _ask(self, method: Any, request: Any) -> Any:
        attempts = Attempts(self._unary_timeout_s, self._retry_s)
        while True:
            try:
                return await method(request, timeout=attempts.remaining_s)
            except AioRpcError as error:
                await asyncio.sleep(attempts.pause_after(error))


class AsyncAnswerStream(AsyncIterator[Chunk]):
    """The chunks of one answer. A stream that is dropped is cancelled, one that another task closes ends."""

    def __init__(self, start: Callable[[], Any], attempts: Attempts) -> None:
        self._start = start
        self._attempts = attempts
        self._collected = Collected()
        self._closed = asyncio.Event()
        self._call: Any = None
        self._call = start()

    def __del__(self) -> None:
        if self._call is not None and not self._collected.is_complete:
            with contextlib.suppress(RuntimeError):  # the loop may be gone, and the call with it
                self._call.cancel()

    async def __aenter__(self) -> AsyncAnswerStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> Chunk:
        while not self._closed.is_set() and not self._collected.is_complete:
            try:
                message = await self._call.read()
                if message is EOF:
                    break
            except AioRpcError as error:
                if self._collected.chunks:
                    raise typed(error) from error
                await self._pause(self._attempts.pause_after(error))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._closed.is_set() and task is not None and not task.cancelling():
                    break  # the call was cancelled by `aclose` in another task, not this one
                self._call.cancel()
                raise
            else:
                chunk = chunk_from_proto(message)
                self._collected.chunks.append(chunk)
                return chunk
        raise StopAsyncIteration

    async def _pause(self, pause_s: float) -> None:
        """Wait, and open the call again unless the stream is closed meanwhile."""
        try:
            async with asyncio.timeout(pause_s):
                await self._closed.wait()
        except TimeoutError:
            self._call = self._start()

    async def answer(self) -> Answer:
        """The whole answer, once it is over; PeerUnavailable if it was closed before."""
        async for _ in self:
            pass
        return self._collected.answer()

    async def aclose(self) -> None:
        """Cancel what is left of the generation; nothing happens once it is over."""
        self._closed.set()
        self._call.cancel()
