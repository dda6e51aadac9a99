"""Servers over real sockets: health, reflection, the way down."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from specgrove import errors
from specgrove.proto.v1 import verifier_pb2
from specgrove.proto.v1.speculation_pb2 import DrafterMessage
from specgrove.rpc import GrpcServer, StatusCode, error_from_rpc, open_channel, wait_for_signal
from support.rpc_stand import (
    SERVICE,
    Generated,
    Running,
    StartServer,
    all_of,
    failure_of,
    true_within,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def check(running: Running, service: str) -> int:
    answer = await running.health.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def test_health_answers_for_the_server_and_each_service(start_server: StartServer) -> None:
    running = await start_server()
    assert [await check(running, name) for name in ("", SERVICE)] == [SERVING, SERVING]
    running.server.set_serving(False)
    assert [await check(running, name) for name in ("", SERVICE)] == [NOT_SERVING, NOT_SERVING]
    failure = await failure_of(running.health.Check(health_pb2.HealthCheckRequest(service="nobody")))
    assert failure.code() is StatusCode.NOT_FOUND
    listed = await running.health.List(health_pb2.HealthListRequest())
    assert {name: answer.status for name, answer in listed.statuses.items()} == {"": NOT_SERVING, SERVICE: NOT_SERVING}


async def test_a_server_can_start_before_it_is_ready() -> None:
    server = GrpcServer("127.0.0.1", 0)
    server.set_serving(False)
    channel = open_channel(f"127.0.0.1:{await server.start()}")
    health = health_pb2_grpc.HealthStub(channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
    server.set_serving(True)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == SERVING
    await channel.close()
    await server.stop(0)


async def test_a_watch_tells_each_change_once(start_server: StartServer) -> None:
    running = await start_server()
    watch = running.health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == SERVING
    running.server.set_serving(True)
    running.server.set_serving(False)
    assert (await watch.read()).status == NOT_SERVING
    running.server.set_serving(True)
    assert (await watch.read()).status == SERVING
    watch.cancel()


async def test_an_unknown_service_can_be_watched(start_server: StartServer) -> None:
    running = await start_server()
    watch = running.health.Watch(health_pb2.HealthCheckRequest(service="nobody"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_a_generic_client_finds_services_and_their_descriptors(start_server: StartServer, version: str) -> None:
    running = await start_server()
    reflect = running.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    call = reflect()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = [service.name for service in (await call.read()).list_services_response.service]
    assert SERVICE in names
    assert "grpc.health.v1.Health" in names
    for name in names:
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        answer = await call.read()
        assert answer.WhichOneof("message_response") == "file_descriptor_response", name
    await call.done_writing()
    assert await all_of(call) == []


async def test_an_idle_server_stops_at_once_whatever_streams_are_open(start_server: StartServer) -> None:
    running = await start_server()
    watch = running.health.Watch(health_pb2.HealthCheckRequest())
    await watch.read()
    draft_stream = running.stub.Speculate()
    await draft_stream.write(DrafterMessage())
    await draft_stream.read()
    started = time.monotonic()
    await running.server.stop(grace_s=30)
    assert time.monotonic() - started < 1
    assert (await watch.read()).status == NOT_SERVING
    assert await all_of(watch) == []
    failure = await failure_of(draft_stream.read())
    assert failure.code() is StatusCode.UNAVAILABLE
    assert "shutting down" in (failure.details() or "")
    assert running.verifier.num_open == 0


async def test_running_generations_are_finished_and_new_ones_refused(start_server: StartServer) -> None:
    running = await start_server()
    go_on = asyncio.Event()

    async def generate() -> AsyncIterator[Any]:
        yield Generated(epoch=1)
        await go_on.wait()
        yield Generated(epoch=2)

    running.verifier.generate = generate
    draft_stream = running.stub.Speculate()
    await draft_stream.write(DrafterMessage())
    await draft_stream.read()
    call = running.stub.Generate(verifier_pb2.VerifierGenerateRequest())
    await call.read()
    stopping = asyncio.create_task(running.server.stop(grace_s=30))
    await true_within(lambda: running.server.is_draining)
    assert await check(running, SERVICE) == NOT_SERVING
    running.server.set_serving(True)
    assert await check(running, SERVICE) == NOT_SERVING
    refused = await failure_of(running.stub.Describe(verifier_pb2.DescribeRequest()))
    assert type(error_from_rpc(refused)) is errors.PeerUnavailable
    await draft_stream.write(DrafterMessage())  # still there: the running generation may need its drafts
    await draft_stream.read()
    assert not stopping.done()
    go_on.set()
    assert [message.epoch for message in await all_of(call)] == [2]
    async with asyncio.timeout(2):
        await stopping


async def test_a_generation_longer_than_the_grace_is_cut_and_told_so(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start_server()

    async def generate() -> AsyncIterator[Any]:
        yield Generated(epoch=1)
        await asyncio.Event().wait()

    running.verifier.generate = generate
    call = running.stub.Generate(verifier_pb2.VerifierGenerateRequest())
    await call.read()
    started = time.monotonic()
    await running.server.stop(grace_s=0.3)
    assert 0.3 <= time.monotonic() - started < 1.5
    failure = await failure_of(call.read())
    assert failure.code() is StatusCode.UNAVAILABLE
    assert running.verifier.num_open == 0
    assert "cut calls that did not end within the grace" in caplog.text


async def test_a_handler_that_will_not_end_cannot_hold_the_server(start_server: StartServer) -> None:
    running = await start_server()
    release = asyncio.Event()

    async def generate() -> AsyncIterator[Any]:
        yield Generated(epoch=1)
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    running.verifier.generate = generate
    call = running.stub.Generate(verifier_pb2.VerifierGenerateRequest())
    await call.read()
    started = time.monotonic()
    await running.server.stop(grace_s=0.1)
    assert time.monotonic() - started < 2
    release.set()
    await failure_of(call.read())


async def test_stopping_twice_or_before_the_start_is_harmless(start_server: StartServer) -> None:
    await GrpcServer("127.0.0.1", 0).stop(1)
    running = await start_server()
    await asyncio.gather(running.server.stop(1), running.server.stop(1))
    await running.server.stop(1)


async def test_a_stopped_server_frees_its_port(start_server: StartServer) -> None:
    running = await start_server()
    await running.stub.Describe(verifier_pb2.DescribeRequest())
    await running.server.stop(0)
    again = GrpcServer("127.0.0.1", running.server.port)
    assert await again.start() == running.server.port
    await again.stop(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_waited_for(number: signal.Signals) -> None:
    waiting = asyncio.create_task(wait_for_signal())
    await asyncio.sleep(0)
    os.kill(os.getpid(), number)
    async with asyncio.timeout(2):
        assert await waiting is number
