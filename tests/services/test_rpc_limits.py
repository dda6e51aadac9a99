"""Servers and channels over real sockets: caps, deadlines, ports, connections that die."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specgrove import errors
from specgrove.proto.v1 import verifier_pb2, verifier_pb2_grpc
from specgrove.proto.v1.speculation_pb2 import DrafterMessage
from specgrove.rpc import GrpcServer, StatusCode, error_from_rpc, open_channel
from support.rpc_stand import (
    SERVICE,
    Generated,
    StartServer,
    failure_of,
    true_within,
)


async def test_a_message_over_the_cap_is_refused_and_the_next_call_answered(start_server: StartServer) -> None:
    running = await start_server(max_message_bytes=64 * 1024)
    large = verifier_pb2.VerifierGenerateRequest(prompt_token_ids=range(100_000))
    failure = await failure_of(running.stub.Generate(large).read())
    assert type(error_from_rpc(failure)) is errors.RequestTooLarge
    await running.stub.Describe(verifier_pb2.DescribeRequest())


async def test_the_client_caps_what_it_sends_and_receives(start_server: StartServer) -> None:
    running = await start_server()

    async def generate() -> AsyncIterator[Any]:
        yield Generated(token_ids=range(100_000))

    running.verifier.generate = generate
    channel = open_channel(f"127.0.0.1:{running.server.port}", max_message_bytes=64 * 1024)
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    large = verifier_pb2.VerifierGenerateRequest(prompt_token_ids=range(100_000))
    for request in (large, verifier_pb2.VerifierGenerateRequest()):
        failure = await failure_of(stub.Generate(request).read())
        assert type(error_from_rpc(failure)) is errors.RequestTooLarge
    await channel.close()


async def test_more_calls_than_the_limit_are_refused_but_health_is_answered(start_server: StartServer) -> None:
    running = await start_server(max_calls=2)

    async def generate() -> AsyncIterator[Any]:
        yield Generated(epoch=1)
        await asyncio.Event().wait()

    running.verifier.generate = generate
    calls = [running.stub.Generate(verifier_pb2.VerifierGenerateRequest()) for _ in range(2)]
    for call in calls:
        await call.read()
    failure = await failure_of(running.stub.Describe(verifier_pb2.DescribeRequest()))
    assert type(error_from_rpc(failure)) is errors.Overloaded
    await running.health.Check(health_pb2.HealthCheckRequest())
    calls[0].cancel()
    await true_within(lambda: running.verifier.num_open == 1)
    await running.stub.Describe(verifier_pb2.DescribeRequest())
    calls[1].cancel()


async def test_a_unary_call_without_a_timeout_gets_one(start_server: StartServer) -> None:
    running = await start_server()
    running.verifier.describe = asyncio.Event().wait  # type: ignore[assignment]
    channel = open_channel(f"127.0.0.1:{running.server.port}", unary_timeout_s=0.2)
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    started = time.monotonic()
    failure = await failure_of(stub.Describe(verifier_pb2.DescribeRequest()))
    assert time.monotonic() - started < 2
    assert failure.code() is StatusCode.DEADLINE_EXCEEDED
    assert type(error_from_rpc(failure)) is errors.PeerUnavailable
    await channel.close()


async def test_the_server_bounds_a_unary_call_by_itself(start_server: StartServer) -> None:
    running = await start_server(unary_timeout_s=0.2)
    running.verifier.describe = asyncio.Event().wait  # type: ignore[assignment]
    failure = await failure_of(running.stub.Describe(verifier_pb2.DescribeRequest(), timeout=30))
    assert failure.code() is StatusCode.DEADLINE_EXCEEDED
    assert "0.2 s" in (failure.details() or "")


async def test_a_client_that_leaves_ends_the_handler_at_once(start_server: StartServer) -> None:
    running = await start_server()

    async def generate() -> AsyncIterator[Any]:
        while True:
            yield Generated(epoch=1)
            await asyncio.sleep(0.001)

    running.verifier.generate = generate
    for _ in range(5):
        call = running.stub.Generate(verifier_pb2.VerifierGenerateRequest())
        await call.read()
        call.cancel()
        await true_within(lambda: running.verifier.num_open == 0, timeout_s=0.5)


async def test_log_lines_of_a_call_carry_the_ids_of_the_caller(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "specgrove.rpc")
    running = await start_server()
    metadata = (("x-request-id", "r1"), ("x-session-id", "s1"))
    await running.stub.Describe(verifier_pb2.DescribeRequest(), metadata=metadata)
    await running.stub.Describe(verifier_pb2.DescribeRequest())
    assert running.verifier.contexts == [{"request_id": "r1", "session_id": "s1"}, {}]
    finished = [record for record in caplog.records if record.getMessage() == "call finished"]
    assert [(vars(record)["method"], vars(record)["outcome"]) for record in finished] == [
        (f"/{SERVICE}/Describe", "OK")
    ] * 2


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
async def test_a_port_in_use_is_named(start_server: StartServer, host: str) -> None:
    running = await start_server()
    port = running.server.port
    with pytest.raises(errors.ConfigError, match=rf"{host}:{port}: Address already in use"):
        await GrpcServer(host, port).start()


async def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(errors.ConfigError, match=r"cannot listen on 192\.0\.2\.1:50051"):
        await GrpcServer("192.0.2.1", 50051).start()


async def test_all_interfaces_means_all_interfaces() -> None:
    server = GrpcServer("0.0.0.0", 0)
    port = await server.start()
    channel = open_channel(f"127.0.0.1:{port}")
    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    await channel.close()
    await server.stop(0)


async def test_a_proxy_in_the_environment_is_not_meant_for_pods(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    running = await start_server()
    await running.stub.Describe(verifier_pb2.DescribeRequest(), timeout=5)


async def test_a_restarted_server_is_reached_again_within_two_seconds(start_server: StartServer) -> None:
    running = await start_server()
    port = running.server.port
    await running.stub.Describe(verifier_pb2.DescribeRequest())
    await running.server.stop(0)
    for _ in range(20):  # enough failures to have run any back-off up
        await failure_of(running.stub.Describe(verifier_pb2.DescribeRequest(), timeout=1))
        await asyncio.sleep(0.1)
    second = GrpcServer("127.0.0.1", port)
    second.add(running.verifier, verifier_pb2_grpc.add_VerifierServiceServicer_to_server, SERVICE)
    await second.start()
    started = time.monotonic()
    await running.stub.Describe(verifier_pb2.DescribeRequest(), wait_for_ready=True, timeout=5)
    assert time.monotonic() - started < 2
    await second.stop(0)


class Wire:
    """A TCP proxy that can go dead without closing anything, as a pulled cable does."""

    def __init__(self, port: int) -> None:
        self._target_port = port
        self._is_alive = asyncio.Event()
        self._is_alive.set()
        self._pumps: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def go_dead(self) -> None:
        self._is_alive.clear()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._pumps.append(asyncio.create_task(self._pump(source, sink)))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while chunk := await source.read(65536):
                await self._is_alive.wait()
                sink.write(chunk)
        finally:
            sink.close()


@pytest.mark.slow
async def test_both_ends_notice_a_dead_connection_within_sixteen_seconds(start_server: StartServer) -> None:
    running = await start_server()
    wire = Wire(running.server.port)
    channel = open_channel(f"127.0.0.1:{await wire.open()}")
    call = verifier_pb2_grpc.VerifierServiceStub(channel).Speculate()
    await call.write(DrafterMessage())
    await call.read()
    wire.go_dead()
    started = time.monotonic()
    async with asyncio.timeout(30):
        failure = await failure_of(call.read())
    assert time.monotonic() - started < 16
    assert type(error_from_rpc(failure)) is errors.PeerUnavailable
    await true_within(lambda: running.verifier.num_open == 0, timeout_s=16)
    assert time.monotonic() - started < 17
    await channel.close()
    await wire.close()
