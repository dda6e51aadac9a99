"""specgrove as a client sees it: a gateway's gRPC face, token ids in and token ids out."""

from __future__ import annotations

import time
from typing import Any

import grpc

from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from specgrove_bench.request import Answer, Ask, AskFailed, Chunk, SpeculationCounts

_TIMEOUT_S = 1800.0


class GatewayClient:
    """An async client around one channel; make and close it inside the event loop that asks."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),))
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def ask(self, ask: Ask) -> Answer:
        began = time.perf_counter()
        token_ids: list[int] = []
        chunks: list[Chunk] = []
        counts: SpeculationCounts | None = None
        try:
            async for response in self._stub.Generate(_message(ask), timeout=_TIMEOUT_S):
                if response.token_ids:
                    chunks.append(Chunk(time.perf_counter() - began, len(response.token_ids)))
                    token_ids.extend(response.token_ids)
                if response.HasField("stats"):
                    counts = _counts(response.stats)
        except grpc.aio.AioRpcError as error:
            raise AskFailed(f"the gateway answered {error.code().name}: {error.details()}") from error
        return Answer(tuple(chunks), tuple(token_ids), counts)


def _message(ask: Ask) -> gateway_pb2.GenerateRequest:
    return gateway_pb2.GenerateRequest(
        token_ids=gateway_pb2.TokenIds(ids=ask.token_ids),
        temperature=ask.temperature,
        top_p=ask.top_p,
        seed=ask.seed,
        max_tokens=ask.max_tokens,
        ignore_eos=ask.ignore_eos,
        speculation=generation_pb2.SpeculationOptions(disabled=not ask.speculation),
    )


def _counts(stats: Any) -> SpeculationCounts:
    return SpeculationCounts(
        num_steps=stats.num_steps,
        num_drafts=stats.num_drafts,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        accepted_per_depth=tuple(stats.accepted_per_pos),
        drafted_per_depth=tuple(stats.drafted_per_pos),
    )
