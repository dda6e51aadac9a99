"""One verifier over gRPC, behind the pool's `VerifierLink`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from specgrove.errors import PeerUnavailable
from specgrove.proto.v1 import verifier_pb2, verifier_pb2_grpc
from specgrove.rpc import AioRpcError, Channel, error_from_rpc
from specgrove_gateway.generation import GenerationRequest, TokenStep
from specgrove_gateway.service.messages import info_from_proto, step_from_proto, verifier_request_to_proto
from specgrove_gateway.verifier_pool import VerifierInfo


class VerifierClient:
    """Owns `channel` and the calls on it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        self._calls: set[Any] = set()
        self._given_up: set[Any] = set()

    async def describe(self, timeout_s: float) -> VerifierInfo:
        try:
            message = await self._stub.Describe(verifier_pb2.DescribeRequest(), timeout=timeout_s)
        except AioRpcError as error:
            raise error_from_rpc(error) from error
        return info_from_proto(message)

    async def generate(
        self, request: GenerationRequest, *, epoch: int, committed: Sequence[int], timeout_s: float
    ) -> AsyncGenerator[TokenStep, None]:
        call = self._stub.Generate(
            verifier_request_to_proto(request, epoch, committed),
            timeout=timeout_s,
            metadata=(("x-request-id", request.request_id), ("x-session-id", request.session_id)),  # for its log lines
        )
        self._calls.add(call)
        try:
            async for message in call:
                yield step_from_proto(message)
        except AioRpcError as error:
            raise error_from_rpc(error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call in self._given_up and task is not None and not task.cancelling():
                raise PeerUnavailable("the verifier fell silent in the middle of a generation") from None
            raise
        finally:
            call.cancel()
            self._calls.discard(call)
            self._given_up.discard(call)

    def give_up(self) -> None:
        for call in tuple(self._calls):
            self._given_up.add(call)
            call.cancel()

    async def close(self) -> None:
        await self._channel.close()
