"""One greedy answer through a gateway, timed where the client stands."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc

from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2

_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """`decode_s` is from the first token's chunk to the last one's; tokens that came with the first are not in it."""

    token_ids: tuple[int, ...]
    first_token_s: float
    decode_s: float
    num_decoded: int
    num_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_depth: tuple[int, ...]
    drafted_per_depth: tuple[int, ...]

    @property
    def time_per_token_s(self) -> float | None:
        """None for an answer that came in one chunk."""
        return self.decode_s / self.num_decoded if self.num_decoded else None


class GatewayClient:
    """A context manager around one channel."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),))
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def ask(self, prompt_ids: tuple[int, ...], *, max_tokens: int, speculation: bool) -> TimedAnswer:
        request = gateway_pb2.GenerateRequest(
            token_ids=gateway_pb2.TokenIds(ids=prompt_ids),
            temperature=0.0,
            max_tokens=max_tokens,
            speculation=generation_pb2.SpeculationOptions(disabled=not speculation),
        )
        began = time.perf_counter()
        token_ids: list[int] = []
        first_at = last_at = began
        num_first = 0
        stats: Any = generation_pb2.SpeculationStats()
        for response in self._stub.Generate(request, timeout=_TIMEOUT_S):
            if response.token_ids:
                last_at = time.perf_counter()
                if not token_ids:
                    first_at, num_first = last_at, len(response.token_ids)
                token_ids.extend(response.token_ids)
            if response.HasField("stats"):
                stats = response.stats
        return TimedAnswer(
            token_ids=tuple(token_ids),
            first_token_s=first_at - began,
            decode_s=last_at - first_at,
            num_decoded=len(token_ids) - num_first,
            num_steps=stats.num_steps,
            num_drafts=stats.num_drafts,
            num_draft_tokens=stats.num_draft_tokens,
            num_accepted_tokens=stats.num_accepted_tokens,
            accepted_per_depth=tuple(stats.accepted_per_pos),
            drafted_per_depth=tuple(stats.drafted_per_pos),
        )
