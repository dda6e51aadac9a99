"""The gRPC face: a generic client finds and calls it by reflection; text, ids and figures stream; cancel crosses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc, generation_pb2
from specgrove.rpc import open_channel
from specgrove.text import Tokenizer
from support.fake_verifier import FakeVerifier
from support.gateway import MODEL, RunningGateway, running_gateway
from support.tiny_tokenizer import write_tiny_tokenizer
from support.waiting import until

ANSWER = "Hello 👩‍👩‍👧 world"
SERVICE = "specgrove.proto.v1.GatewayService"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def verifier(folder: Path) -> AsyncIterator[FakeVerifier]:
    tokenizer = Tokenizer.load(folder)
    fake = FakeVerifier(tokenizer, lambda prompt, seed: [*tokenizer.encode(ANSWER), 2])
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def gateway(folder: Path, verifier: FakeVerifier) -> AsyncIterator[RunningGateway]:
    async with running_gateway(folder, [verifier]) as gateway:
        yield gateway


@pytest.fixture
async def stub(gateway: RunningGateway) -> AsyncIterator[Any]:
    async with open_channel(f"127.0.0.1:{gateway.ports.grpc}") as channel:
        yield gateway_pb2_grpc.GatewayServiceStub(channel)


def test_a_generic_client_lists_and_calls_the_service_by_reflection(folder: Path) -> None:
    """As grpcurl does it: nothing but the address is known."""

    async def scenario() -> None:
        tokenizer = Tokenizer.load(folder)
        verifier = FakeVerifier(tokenizer, lambda prompt, seed: [*tokenizer.encode(ANSWER), 2])
        await verifier.start()
        async with running_gateway(folder, [verifier]) as gateway:
            texts = await asyncio.to_thread(_call_by_reflection, f"127.0.0.1:{gateway.ports.grpc}")
            assert "".join(texts) == ANSWER
        await verifier.stop()

    asyncio.run(scenario())


def _call_by_reflection(target: str) -> list[str]:
    with grpc.insecure_channel(target) as channel:
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)

        def ask(**question: str) -> Any:
            request = reflection_pb2.ServerReflectionRequest(**question)
            return next(iter(reflection.ServerReflectionInfo(iter([request]), timeout=10)))

        services = [service.name for service in ask(list_services="").list_services_response.service]
        assert SERVICE in services
        pool = descriptor_pool.DescriptorPool()
        files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        for raw in ask(file_containing_symbol=SERVICE).file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(raw)
            files[file.name] = file
        for file in list(files.values()):
            for name in file.dependency:
                if name not in files:
                    raw = ask(file_by_filename=name).file_descriptor_response.file_descriptor_proto[0]
                    files[name] = descriptor_pb2.FileDescriptorProto.FromString(raw)
        for file in sorted(files.values(), key=lambda file: len(file.dependency)):
            pool.Add(file)
        method = pool.FindServiceByName(SERVICE).FindMethodByName("Generate")
        request_class = message_factory.GetMessageClass(method.input_type)
        response_class = message_factory.GetMessageClass(method.output_type)
        call = channel.unary_stream(
            f"/{SERVICE}/Generate",
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        return [part.text for part in call(json_format.ParseDict({"prompt": "Hello"}, request_class()), timeout=10)]


async def test_text_ids_usage_figures_and_seed_arrive(stub: Any, folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    parts = [part async for part in stub.Generate(gateway_pb2.GenerateRequest(prompt="Hello", seed=9), timeout=10)]
    assert "".join(part.text for part in parts) == ANSWER
    assert [token_id for part in parts for token_id in part.token_ids] == [*tokenizer.encode(ANSWER), 2]
    assert [part.finish_reason for part in parts[:-1]] == [generation_pb2.FINISH_REASON_UNSPECIFIED] * (len(parts) - 1)
    last = parts[-1]
    assert last.finish_reason == generation_pb2.FINISH_REASON_STOP
    assert last.seed == 9
    assert last.usage.completion_tokens == len(tokenizer.encode(ANSWER)) + 1
    assert list(last.stats.accepted_per_pos) == [6, 3]
    assert last.request_id
    assert last.session_id


async def test_chat_goes_through_the_template(stub: Any, verifier: FakeVerifier, folder: Path) -> None:
    chat = gateway_pb2.ChatMessages(messages=[{"role": "user", "content": "Hi"}])
    async for _ in stub.Generate(gateway_pb2.GenerateRequest(chat=chat), timeout=10):
        pass
    text = Tokenizer.load(folder).decode(verifier.requests[0].prompt_token_ids, skip_special=False)
    assert text == "<|start|>user\nHi<|end|>\n<|start|>assistant\n"


async def test_models_are_listed(stub: Any) -> None:
    (model,) = (await stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=10)).models
    assert (model.id, model.max_context_len) == (MODEL, 256)
    assert model.vocab_size > 0


async def test_cancelling_the_call_cancels_the_verifier_at_once(stub: Any, verifier: FakeVerifier) -> None:
    verifier.behaviour.hang_after = 2
    call = stub.Generate(gateway_pb2.GenerateRequest(prompt="Hello"), timeout=10)
    await call.read()
    call.cancel()
    await asyncio.wait_for(verifier.cancelled.wait(), 1.0)


async def test_health_follows_readiness(gateway: RunningGateway, verifier: FakeVerifier) -> None:
    async with open_channel(f"127.0.0.1:{gateway.ports.grpc}") as channel:
        health = health_pb2_grpc.HealthStub(channel)

        async def status() -> int:
            answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5)
            return int(answer.status)

        async def is_serving() -> bool:
            return await status() == health_pb2.HealthCheckResponse.SERVING

        async def is_not_serving() -> bool:
            return await status() == health_pb2.HealthCheckResponse.NOT_SERVING

        await until(is_serving)
        await verifier.stop()
        await until(is_not_serving, timeout_s=15)
