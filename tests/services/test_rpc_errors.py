"""Errors over real sockets: ours arrive whole, foreign ones tell nothing."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from specgrove import errors
from specgrove.proto.v1 import verifier_pb2, verifier_pb2_grpc
from specgrove.proto.v1.speculation_pb2 import DrafterMessage
from specgrove.rpc import StatusCode, error_from_rpc, open_channel
from support.rpc_stand import (
    SERVICE,
    Generated,
    StartServer,
    failure_of,
    true_within,
)

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
