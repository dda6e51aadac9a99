"""A gRPC client of the gateway for tests: token ids in, token ids out, with the arrival time of every chunk."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any

import grpc

from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from support.waiting import wait_until

# Loopback whatever proxy the environment names; the message cap is above the gateway's, so that its own is seen.
CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_send_message_length", 64 * 1024 * 1024))
_TIMEOUT_S = 150.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    speculation: bool = True
    ignore_eos: bool = False
    rule: int = generation_pb2.VERIFICATION_RULE_UNSPECIFIED
    expansion: tuple[int, ...] = ()

    def to_proto(self) -> gateway_pb2.GenerateRequest:
        return gateway_pb2.GenerateRequest(
            token_ids=gateway_pb2.TokenIds(ids=self.prompt_ids),
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            speculation=generation_pb2.SpeculationOptions(
                disabled=not self.speculation, rule=self.rule, expansion=self.expansion
            ),
        )


@dataclass(slots=True)
class Answer:
    """What came back; `chunks` holds (arrival on the monotonic clock, tokens in the chunk)."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    chunks: list[tuple[float, int]] = field(default_factory=list)
    stats: Any = None  # generation_pb2.SpeculationStats, once it is over

    def longest_gap_s(self, *, after: float = 0.0) -> float:
        """The longest time between two chunks, of those that arrived after `after`."""
        times = [arrived for arrived, _ in self.chunks]
        gaps = [later - earlier for earlier, later in pairwise(times) if later > after]
        return max(gaps, default=0.0)

    def take(self, response: Any) -> None:
        if response.token_ids:
            self.chunks.append((time.monotonic(), len(response.token_ids)))
        self.token_ids.extend(response.token_ids)
        self.text += response.text
        if response.finish_reason:
            name = generation_pb2.FinishReason.Name(response.finish_reason)
            self.finish_reason = name.removeprefix("FINISH_REASON_").lower()
        if response.HasField("stats"):
            self.stats = response.stats


class LiveStream:
    """A generation that runs in a thread of its own while the test does something to the system."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._answer = Answer()
        self._error: grpc.RpcError | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self._answer.chunks)

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait_for_tokens(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Returns once `count` more tokens have come."""
        wanted = self.num_tokens + count
        wait_until(
            lambda: self.num_tokens >= wanted or self.is_over, timeout_s=timeout_s, what=f"{count} more tokens streamed"
        )
        assert self.num_tokens >= wanted, f"the stream ended early: {self._error or self._answer.finish_reason}"

    def answer(self, *, timeout_s: float = _TIMEOUT_S) -> Answer:
        """The whole answer. Raises what the call raised."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the stream did not end within {timeout_s:g} s"
        if self._error is not None:
            raise self._error
        return self._answer

    def cancel(self) -> None:
        """Leave, as a client that goes away does."""
        self._call.cancel()
        self._thread.join(10.0)

    def _read(self) -> None:
        try:
            for response in self._call:
                self._answer.take(response)
        except grpc.RpcError as error:
            self._error = error


class GatewayClient:
    """Close it, or use it as a context manager."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.stub = gateway_pb2_grpc.GatewayServiceStub(self.channel)

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    def ask(self, ask: Ask) -> Answer:
        answer = Answer()
        for response in self.stub.Generate(ask.to_proto(), timeout=_TIMEOUT_S):
            answer.take(response)
        return answer

    def ask_all(self, asks: Sequence[Ask], *, concurrency: int = 8) -> list[Answer]:
        """The answers in the order of `asks`, at most `concurrency` of them in progress at once."""
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(self.ask, asks))

    def start(self, ask: Ask) -> LiveStream:
        return LiveStream(self.stub.Generate(ask.to_proto(), timeout=_TIMEOUT_S))
