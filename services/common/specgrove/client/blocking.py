"""The client for code without an event loop. Safe to share between threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from specgrove.client.attempts import Attempts, typed
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
from specgrove.rpc import DEFAULT_MAX_MESSAGE_BYTES, RpcError, open_blocking_channel

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_UNARY_TIMEOUT_S = 10.0
DEFAULT_RETRY_S = 5.0
_ResponseT = TypeVar("_ResponseT")


class Client:
    """A gateway at `address` (host:port). Close it, or use it as a context manager.

    `timeout_s` bounds a whole answer, `unary_timeout_s` every other call; `retry_s` is how long a gateway that cannot
    be reached is tried again before the first chunk. Every method raises the errors of `specgrove.errors`.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        unary_timeout_s: float = DEFAULT_UNARY_TIMEOUT_S,
        retry_s: float = DEFAULT_RETRY_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._channel = open_blocking_channel(address, max_message_bytes)
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)
        self._timeout_s = timeout_s
        self._unary_timeout_s = unary_timeout_s
        self._retry_s = retry_s

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what runs and hang up."""
        self._channel.close()

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """The whole answer to one of `prompt`, `messages` and `token_ids`."""
        with self.stream(prompt, messages=messages, token_ids=token_ids, **options) as stream:
            return stream.answer()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AnswerStream:
        """The answer as it comes. Leaving its `with` block, or `close()`, cancels the generation."""
        request = generate_request(prompt, messages, token_ids, options)
        timeout_s = options.get("timeout_s")
        attempts = Attempts(self._timeout_s if timeout_s is None else timeout_s, self._retry_s)
        return AnswerStream(lambda: self._stub.Generate(request, timeout=attempts.remaining_s), attempts)

    def models(self) -> list[Model]:
        """What the gateway serves."""
        return models_from_proto(self._ask(self._stub.ListModels, gateway_pb2.ListModelsRequest()))

    def version(self) -> str:
        """The gateway's version of specgrove."""
        return self._ask(self._stub.ListModels, gateway_pb2.ListModelsRequest()).version

    def tokenize(
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
        return tokens_from_proto(self._ask(self._stub.Tokenize, tokenize_request(prompt, messages, options)))

    def detokenize(self, token_ids: Sequence[int], *, model: str | None = None) -> str:
        """The text of `token_ids`, control tokens included."""
        return self._ask(self._stub.Detokenize, detokenize_request(token_ids, model)).text

    def _ask(self, method: Callable[..., _ResponseT], request: Any) -> _ResponseT:
        attempts = Attempts(self._unary_timeout_s, self._retry_s)
        while True:
            try:
                return method(request, timeout=attempts.remaining_s)
            except RpcError as error:
                time.sleep(attempts.pause_after(error))


class AnswerStream(Iterator[Chunk]):
    """The chunks of one answer. A stream that is dropped is cancelled, one that is closed from another thread ends."""

    def __init__(self, start: Callable[[], Any], attempts: Attempts) -> None:
        self._start = start
        self._attempts = attempts
        self._collected = Collected()
        self._closed = threading.Event()
        self._call: Any = None
        self._call = start()

    def __del__(self) -> None:
        if self._call is not None and not self._collected.is_complete:
            self._call.cancel()

    def __enter__(self) -> AnswerStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __next__(self) -> Chunk:
        while not self._closed.is_set() and not self._collected.is_complete:
            try:
                chunk = chunk_from_proto(next(self._call))
            except StopIteration:
                break
            except RpcError as error:
                if self._closed.is_set():
                    break
                if self._collected.chunks:
                    raise typed(error) from error
                if not self._closed.wait(self._attempts.pause_after(error)):
                    self._call = self._start()
            else:
                self._collected.chunks.append(chunk)
                return chunk
        raise StopIteration

    def answer(self) -> Answer:
        """The whole answer, once it is over; PeerUnavailable if it was closed before."""
        for _ in self:
            pass
        return self._collected.answer()

    def close(self) -> None:
        """Cancel what is left of the generation; nothing happens once it is over."""
        self._closed.set()
        self._call.cancel()
