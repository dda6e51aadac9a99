"""Wrong input over gRPC: the status names the field, and the next request is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc
from specgrove.proto.v1.generation_pb2 import SpeculationOptions
from specgrove.rpc import AioRpcError, StatusCode, open_channel
from support.gateway import RunningGateway, gateway_that_says_hello_world, says_hello_world
from support.tiny_tokenizer import write_tiny_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(folder: Path) -> AsyncIterator[RunningGateway]:
    async with gateway_that_says_hello_world(folder) as running:
        yield running


GRPC_CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": "oak " * 300}, "prompt"),
    ({"chat": gateway_pb2.ChatMessages()}, "chat"),
    ({"chat": gateway_pb2.ChatMessages(messages=[{"role": "alien", "content": "x"}])}, "chat"),
    ({"token_ids": gateway_pb2.TokenIds(ids=[])}, "token_ids"),
    ({"token_ids": gateway_pb2.TokenIds(ids=[400_000])}, "token_ids"),
    ({"prompt": "Hi", "temperature": -1}, "temperature"),
    ({"prompt": "Hi", "temperature": float("nan")}, "temperature"),
    ({"prompt": "Hi", "top_p": 0}, "top_p"),
    ({"prompt": "Hi", "min_p": 2}, "min_p"),
    ({"prompt": "Hi", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "Hi", "max_tokens": 100_000}, "max_tokens"),
    ({"prompt": "Hi", "min_tokens": 9, "max_tokens": 4}, "min_tokens"),
    ({"prompt": "Hi", "stop": [""]}, "stop"),
    ({"prompt": "Hi", "stop": ["x"] * 17}, "stop"),
    ({"prompt": "Hi", "stop_token_ids": [9999]}, "stop_token_ids"),
    ({"prompt": "Hi", "repetition_penalty": 0.0}, "repetition_penalty"),
    ({"prompt": "Hi", "repetition_penalty": float("nan")}, "repetition_penalty"),
    ({"prompt": "Hi", "presence_penalty": float("inf")}, "presence_penalty"),
    ({"prompt": "Hi", "frequency_penalty": 2.5}, "frequency_penalty"),
    ({"prompt": "Hi", "logit_bias": {5: 101.0}}, "logit_bias"),
    ({"prompt": "Hi", "logit_bias": {5: float("nan")}}, "logit_bias"),
    ({"prompt": "Hi", "logit_bias": {2**32 - 1: 1.0}}, "logit_bias"),
    ({"prompt": "Hi", "logit_bias": dict.fromkeys(range(301), 1.0)}, "logit_bias"),
    ({"prompt": "Hi", "top_logprobs": 21}, "top_logprobs"),
    ({"prompt": "Hi", "n": 0}, "n"),
    ({"prompt": "Hi", "n": 2**32 - 1}, "n"),
    ({"chat": gateway_pb2.ChatMessages(messages=[{"role": "user", "content": "x"}]), "echo": True}, "echo"),
    ({"prompt": "Hi", "session_id": "a b"}, "session_id"),
    ({"prompt": "Hi", "model": "gpt-4o"}, "model"),
    # Protobuf hands on numbers that no rule has, as from a client of a later version.
    ({"prompt": "Hi", "speculation": SpeculationOptions(rule=9)}, "speculation.rule"),  # type: ignore[arg-type]
    ({"prompt": "Hi", "speculation": SpeculationOptions(expansion=[0])}, "speculation.expansion"),
    ({"prompt": "Hi", "speculation": SpeculationOptions(expansion=[1] * 65)}, "speculation.expansion"),
]


@pytest.mark.parametrize(("fields", "name"), GRPC_CASES, ids=lambda value: value if isinstance(value, str) else "")
async def test_grpc_names_the_wrong_field(gateway: RunningGateway, fields: dict[str, Any], name: str) -> None:
    async with open_channel(f"127.0.0.1:{gateway.ports.grpc}") as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        with pytest.raises(AioRpcError) as raised:
            async for _ in stub.Generate(gateway_pb2.GenerateRequest(**fields), timeout=10):
                pass
        is_model = name == "model"
        assert raised.value.code() is (StatusCode.NOT_FOUND if is_model else StatusCode.INVALID_ARGUMENT)
        assert dict(raised.value.trailing_metadata() or ())["specgrove-field"] == name
        answer = [part async for part in stub.Generate(gateway_pb2.GenerateRequest(prompt="Hi"), timeout=10)]
        assert "".join(part.text for part in answer) == "Hello world"


@pytest.mark.parametrize(
    ("num_chars", "code"), [(100_000, StatusCode.INVALID_ARGUMENT), (10_000_000, StatusCode.RESOURCE_EXHAUSTED)]
)
async def test_grpc_message_over_the_cap_is_refused(gateway: RunningGateway, num_chars: int, code: StatusCode) -> None:
    """Over our cap the field is named; far over it (16 times), gRPC itself refuses to read on."""
    async with open_channel(f"127.0.0.1:{gateway.ports.grpc}", 64 * 1024 * 1024) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        with pytest.raises(AioRpcError) as raised:
            async for _ in stub.Generate(gateway_pb2.GenerateRequest(prompt="a" * num_chars), timeout=10):
                pass
        assert raised.value.code() is code
        if code is StatusCode.INVALID_ARGUMENT:
            assert dict(raised.value.trailing_metadata() or ())["specgrove-field"] == "prompt"
    assert await says_hello_world(gateway)
