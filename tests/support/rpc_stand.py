"""A server with a servicer that a test plays, and a channel to it, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from grpc.aio import EOF
from grpc_health.v1 import health_pb2_grpc

from specgrove import errors
from specgrove.proto.v1 import verifier_pb2, verifier_pb2_grpc
from specgrove.proto.v1.speculation_pb2 import VerifierMessage
from specgrove.rpc import AioRpcError, Channel, GrpcServer, open_channel
from specgrove.telemetry import current_log_context

SERVICE = "specgrove.proto.v1.VerifierService"
Generated = verifier_pb2.VerifierGenerateResponse


@dataclass
class ScriptedVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """A servicer whose calls do what a test tells them to."""

    describe: Callable[[], Awaitable[None]] | None = None
    generate: Callable[[], AsyncIterator[Any]] | None = None
    num_open: int = 0
    contexts: list[dict[str, str]] = field(default_factory=list)

    async def Describe(self, request: Any, context: Any) -> Any:
        self.contexts.append(dict(current_log_context()))
        if self.describe is not None:
            await self.describe()
        return verifier_pb2.DescribeResponse(verifier_id="v")

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        assert self.generate is not None
        self.num_open += 1
        try:
            async for response in self.generate():
                yield response
        finally:
            self.num_open -= 1

    async def Speculate(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        self.num_open += 1
        try:
            async for message in request_iterator:
                if message.HasField("decline"):
                    raise errors.ProtocolViolation("send Hello first")
                yield VerifierMessage()
        finally:
            self.num_open -= 1


@dataclass
class Running:
    """A server on a free port with a channel to it."""

    verifier: ScriptedVerifier
    server: GrpcServer
    channel: Channel

    @property
    def stub(self) -> Any:
        return verifier_pb2_grpc.VerifierServiceStub(self.channel)

    @property
    def health(self) -> Any:
        return health_pb2_grpc.HealthStub(self.channel)


StartServer = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    started: list[Running] = []

    async def start(**options: Any) -> Running:
        verifier = ScriptedVerifier()
        server = GrpcServer("127.0.0.1", 0, **options)
        server.add(verifier, verifier_pb2_grpc.add_VerifierServiceServicer_to_server, SERVICE)
        port = await server.start()
        assert server.port == port
        running = Running(verifier, server, open_channel(f"127.0.0.1:{port}"))
        started.append(running)
        return running

    yield start
    for running in started:
        await running.channel.close()
        await running.server.stop(0)


async def failure_of(call: Awaitable[Any]) -> AioRpcError:
    with pytest.raises(AioRpcError) as caught:
        await call
    return caught.value


async def all_of(stream: Any) -> list[Any]:
    """The rest of a stream."""
    responses = []
    while (response := await stream.read()) is not EOF:
        responses.append(response)
    return responses


async def true_within(condition: Callable[[], bool], timeout_s: float = 2.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)
