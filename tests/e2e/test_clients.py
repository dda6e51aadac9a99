"""The clients that people have already: the official `openai` package, and any gRPC tool that reads reflection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import openai
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from specgrove.client import Client
from specgrove_local.cluster import LocalCluster
from support.gateway_client import CHANNEL_OPTIONS

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
_MAX_TOKENS = 24


@pytest.fixture
def openai_client(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[openai.OpenAI]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with openai.OpenAI(base_url=f"{cluster.gateway_http_url}/v1", api_key="unused", timeout=60, max_retries=0) as made:
        yield made


def test_openai_client_streams_a_chat_and_gets_usage_and_finish_reason(openai_client: openai.OpenAI) -> None:
    model = openai_client.models.list().data[0].id
    fields: dict[str, Any] = {"model": model, "messages": _MESSAGES, "temperature": 0, "max_tokens": _MAX_TOKENS}
    whole = openai_client.chat.completions.create(**fields)
    chunks = list(openai_client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    finish_reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert text == whole.choices[0].message.content != ""
    assert finish_reasons[-1] == whole.choices[0].finish_reason
    assert finish_reasons[-1] in ("stop", "length")
    assert not any(finish_reasons[:-1])
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1, "it did not stream"
    usage = chunks[-1].usage
    assert usage is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert 0 < usage.completion_tokens <= _MAX_TOKENS
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_openai_client_completes_a_prompt_to_the_asked_length(openai_client: openai.OpenAI) -> None:
    answer = openai_client.completions.create(
        model=openai_client.models.list().data[0].id, prompt="The sea is", max_tokens=8, temperature=0, seed=1
    )
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_our_own_client_gets_the_same_tokens_with_and_without_speculation(cluster: LocalCluster) -> None:
    with Client(cluster.gateway_grpc_address) as client:
        (model,) = client.models()
        assert model.max_context_len > 0
        tokens = client.tokenize(messages=_MESSAGES)
        plain = client.generate(messages=_MESSAGES, seed=7, max_tokens=_MAX_TOKENS, speculation=False)
        with client.stream(token_ids=tokens.token_ids, seed=7, max_tokens=_MAX_TOKENS) as stream:
            texts = [chunk.text for chunk in stream]
        drafted = stream.answer()
    assert drafted.token_ids == plain.token_ids
    assert "".join(texts) == drafted.text == plain.text != ""
    assert drafted.usage == plain.usage
    assert plain.stats.num_drafts == 0


class GenericClient:
    """Knows nothing but an address: services, methods and messages all come from reflection."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._database = ProtoReflectionDescriptorDatabase(channel)
        self._pool = descriptor_pool.DescriptorPool(self._database)

    def services(self) -> set[str]:
        return set(self._database.get_services())

    def methods(self, service: str) -> set[str]:
        return {method.name for method in self._pool.FindServiceByName(service).methods}

    def call(self, service: str, method: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Call with a JSON body, as grpcurl does; the responses as JSON."""
        described = self._pool.FindServiceByName(service).FindMethodByName(method)
        request = json_format.ParseDict(body, message_factory.GetMessageClass(described.input_type)())
        kind = self._channel.unary_stream if described.server_streaming else self._channel.unary_unary
        call = kind(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(described.output_type).FromString,
        )
        answer = call(request, timeout=60)
        responses = list(answer) if described.server_streaming else [answer]
        return [json_format.MessageToDict(response, preserving_proto_field_name=True) for response in responses]


def test_generic_grpc_client_lists_and_calls_the_gateway_through_reflection(cluster: LocalCluster) -> None:
    service = "specgrove.proto.v1.GatewayService"
    with grpc.insecure_channel(cluster.gateway_grpc_address, options=CHANNEL_OPTIONS) as channel:
        client = GenericClient(channel)
        assert {service, "grpc.health.v1.Health"} <= client.services()
        assert client.methods(service) == {"Generate", "ListModels", "Tokenize", "Detokenize"}
        models = client.call(service, "ListModels", {})[0]["models"]
        assert models[0]["max_context_len"] > 0
        chat = {"chat": {"messages": _MESSAGES}, "temperature": 0, "max_tokens": 8}
        responses = client.call(service, "Generate", chat)
        assert "".join(response.get("text", "") for response in responses)
        assert responses[-1]["finish_reason"].startswith("FINISH_REASON_")
        health = client.call("grpc.health.v1.Health", "Check", {"service": service})
        assert health == [{"status": "SERVING"}]


def test_generic_grpc_client_lists_and_calls_the_verifier_through_reflection(cluster: LocalCluster) -> None:
    service = "specgrove.proto.v1.VerifierService"
    with grpc.insecure_channel(cluster.verifiers[0].address, options=CHANNEL_OPTIONS) as channel:
        client = GenericClient(channel)
        assert {service, "grpc.health.v1.Health"} <= client.services()
        assert client.methods(service) == {"Generate", "Speculate", "Describe"}
        assert client.call(service, "Describe", {})[0]["vocab_size"] > 0
        body = {
            "session_id": "reflection",
            "epoch": 1,
            "prompt_token_ids": [1, 4093, 198],
            "sampling": {"temperature": 0, "top_p": 1},
            "stop": {"max_tokens": 4, "ignore_eos": True},
        }
        responses = client.call(service, "Generate", body)
        assert sum(len(response.get("token_ids", [])) for response in responses) == 4
        assert responses[-1]["finish_reason"] == "FINISH_REASON_LENGTH"
