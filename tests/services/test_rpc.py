"""Servers and channels over real sockets: errors, limits, health, reflection, deadlines, the way down."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from grpc.aio import EOF
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from specgrove import errors
from specgrove.proto.v1 import verifier_pb2, verifier_pb2_grpc
from specgrove.proto.v1.speculation_pb2 import DrafterMessage, VerifierMessage
from specgrove.rpc import AioRpcError, Channel, GrpcServer, StatusCode, error_from_rpc, open_channel, wait_for_signal
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


# --- errors ---------------------------------------------------------------------------------------------------------

OUR_ERRORS = [
    (errors.InvalidInput("top_p must be above 0", field="sampling.top_p"), StatusCode.INVALID_ARGUMENT),
    (errors.InvalidInput("wrong", field="messages[0].contént"), StatusCode.INVALID_ARGUMENT),
    (errors.InvalidInput("the body is wrong"), StatusCode.INVALID_ARGUMENT),
    (errors.ContextTooLong("9000 tokens do not fit into 8192", field="prompt"), StatusCode.INVALID_ARGUMENT),
    (errors.RequestTooLarge("too large"), StatusCode.INVALID_ARGUMENT),
    (errors.ModelNotFound("no model x"), StatusCode.NOT_FOUND),
    (errors.SessionLost("gone: ünïcode 木"), StatusCode.NOT_FOUND),
    (errors.StaleEpoch("epoch 4 is over"), StatusCode.ABORTED),
    (errors.Overloaded("full", retry_after_s=2.5), StatusCode.RESOURCE_EXHAUSTED),
    (errors.PeerUnavailable("no verifier"), StatusCode.UNAVAILABLE),
    (errors.VocabularyMismatch("other vocabulary"), StatusCode.FAILED_PRECONDITION),
    (errors.ProtocolViolation("Hello first"), StatusCode.FAILED_PRECONDITION),
    (errors.ConfigError(["one", "two"]), StatusCode.FAILED_PRECONDITION),
    (errors.ModelLoadError("no tokenizer.json"), StatusCode.FAILED_PRECONDITION),
    (errors.SpecgroveError("ours"), StatusCode.INTERNAL),
]


@pytest.mark.parametrize(("error", "code"), OUR_ERRORS, ids=lambda value: type(value).__name__)
async def test_our_errors_cross_the_wire_whole(
    start_server: StartServer, error: errors.SpecgroveError, code: StatusCode
) -> None:
    running = await start_server()

    async def describe() -> None:
        raise error

    running.verifier.describe = describe
    failure = await failure_of(running.stub.Describe(verifier_pb2.DescribeRequest()))
    arrived = error_from_rpc(failure)
    assert failure.code() is code
    assert type(arrived) is type(error)
    assert error.message in arrived.message
    assert getattr(arrived, "field", None) == getattr(error, "field", None)
    assert getattr(arrived, "retry_after_s", None) == getattr(error, "retry_after_s", None)


async def test_an_unknown_class_of_ours_keeps_its_nearest_meaning(start_server: StartServer) -> None:
    class TooManyTokens(errors.InvalidInput):
        pass

    running = await start_server()

    async def describe() -> None:
        raise TooManyTokens("7", field="n")

    running.verifier.describe = describe
    arrived = error_from_rpc(await failure_of(running.stub.Describe(verifier_pb2.DescribeRequest())))
    assert type(arrived) is errors.InvalidInput
    assert arrived.field == "n"


async def test_a_foreign_exception_tells_the_client_nothing_and_the_log_everything(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start_server()

    async def describe() -> None:
        raise ZeroDivisionError("secret")

    running.verifier.describe = describe
    failure = await failure_of(running.stub.Describe(verifier_pb2.DescribeRequest()))
    assert failure.code() is StatusCode.INTERNAL
    assert "secret" not in (failure.details() or "")
    assert type(error_from_rpc(failure)) is errors.SpecgroveError
    assert "ZeroDivisionError: secret" in caplog.text


async def test_a_long_message_is_cut_rather_than_lost(start_server: StartServer) -> None:
    running = await start_server()

    async def describe() -> None:
        raise errors.InvalidInput("x" * 100_000, field="y" * 100_000)

    running.verifier.describe = describe
    failure = await failure_of(running.stub.Describe(verifier_pb2.DescribeRequest()))
    assert failure.code() is StatusCode.INVALID_ARGUMENT
    assert len(failure.details() or "") == 2000


async def test_an_error_after_the_first_message_of_a_stream_arrives(start_server: StartServer) -> None:
    running = await start_server()

    async def generate() -> AsyncIterator[Any]:
        yield Generated(epoch=1)
        raise errors.StaleEpoch("a newer owner has taken the session")

    running.verifier.generate = generate
    call = running.stub.Generate(verifier_pb2.VerifierGenerateRequest())
    assert (await call.read()).epoch == 1
    assert type(error_from_rpc(await failure_of(call.read()))) is errors.StaleEpoch


async def test_an_error_inside_a_bidirectional_stream_arrives_while_the_client_is_still_sending(
    start_server: StartServer,
) -> None:
    running = await start_server()
    call = running.stub.Speculate()
    await call.write(DrafterMessage())
    await call.read()
    await call.write(DrafterMessage(decline={"session_key": 1}))
    assert type(error_from_rpc(await failure_of(call.read()))) is errors.ProtocolViolation
    await true_within(lambda: running.verifier.num_open == 0)


async def test_a_failed_call_to_another_pod_keeps_its_meaning_on_the_way_out(start_server: StartServer) -> None:
    behind = await start_server()
    front = await start_server()

    async def refuse() -> None:
        raise errors.Overloaded("full", retry_after_s=7)

    async def forward() -> None:
        await behind.stub.Describe(verifier_pb2.DescribeRequest())

    behind.verifier.describe = refuse
    front.verifier.describe = forward
    arrived = error_from_rpc(await failure_of(front.stub.Describe(verifier_pb2.DescribeRequest())))
    assert isinstance(arrived, errors.Overloaded)
    assert arrived.retry_after_s == 7


async def test_nobody_listening_is_peer_unavailable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        channel = open_channel(f"127.0.0.1:{probe.getsockname()[1]}")
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        failure = await failure_of(stub.Describe(verifier_pb2.DescribeRequest(), timeout=5))
        assert type(error_from_rpc(failure)) is errors.PeerUnavailable
        await channel.close()


async def test_an_unknown_method_is_unimplemented(start_server: StartServer) -> None:
    running = await start_server()
    call = running.channel.unary_unary(f"/{SERVICE}/Nothing")
    failure = await failure_of(call(b""))
    assert failure.code() is StatusCode.UNIMPLEMENTED
    assert type(error_from_rpc(failure)) is errors.ProtocolViolation


def test_an_empty_address_is_a_config_error() -> None:
    with pytest.raises(errors.ConfigError, match="host:port"):
        open_channel(" ")


# --- limits ---------------------------------------------------------------------------------------------------------


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


# --- ports ----------------------------------------------------------------------------------------------------------


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


# --- health ---------------------------------------------------------------------------------------------------------

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


# --- reflection -----------------------------------------------------------------------------------------------------


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


# --- the way down ---------------------------------------------------------------------------------------------------


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
