"""Wrong requests are refused with the name of the wrong field, and the next request is answered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest

from specgrove.proto.v1 import gateway_pb2, generation_pb2, verifier_pb2, verifier_pb2_grpc
from specgrove_local.cluster import LocalCluster
from support.gateway_client import CHANNEL_OPTIONS, GatewayClient

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_OUT_OF_VOCABULARY = 10_000_000
_TEN_MEGABYTES = "word " * 2_000_000
_LONGER_THAN_CONTEXT = "word " * 20_000


@pytest.fixture
def http(cluster: LocalCluster) -> Iterator[httpx.Client]:
    """An HTTP client; after the test, whatever it did, the system answers the next request."""
    with httpx.Client(base_url=cluster.gateway_http_url, timeout=60, trust_env=False) as made:
        yield made
        answer = made.post("/v1/completions", json={"prompt": "The sea is", "max_tokens": 2, "temperature": 0})
        assert answer.status_code == 200, answer.text


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, **fields}


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        pytest.param("chat/completions", _chat(messages=[]), 400, "messages", id="no messages"),
        pytest.param("completions", {"prompt": ""}, 400, "prompt", id="empty prompt"),
        pytest.param("completions", {"max_tokens": 2}, 400, "prompt", id="missing prompt"),
        pytest.param("completions", {"prompt": _LONGER_THAN_CONTEXT}, 400, "prompt", id="longer than the context"),
        pytest.param("completions", {"prompt": "x", "max_tokens": 10**6}, 400, "max_tokens", id="output too long"),
        pytest.param("chat/completions", _chat(model="nobody"), 404, "model", id="unknown model"),
        pytest.param("chat/completions", _chat(messages="Hello"), 400, "messages", id="messages of a wrong type"),
        pytest.param("chat/completions", _chat(temperature="hot"), 400, "temperature", id="wrong type"),
        pytest.param("chat/completions", _chat(stream="yes"), 400, "stream", id="stream of a wrong type"),
        pytest.param("chat/completions", _chat(temperature=-1), 400, "temperature", id="temperature -1"),
        pytest.param("chat/completions", _chat(max_tokens=0), 400, "max_tokens", id="max_tokens 0"),
        pytest.param("chat/completions", _chat(top_p=0), 400, "top_p", id="top_p 0"),
        pytest.param("completions", {"prompt": [1, _OUT_OF_VOCABULARY]}, 400, "prompt", id="id out of vocabulary"),
        pytest.param("completions", {"prompt": [1, -1]}, 400, "prompt", id="negative id"),
        pytest.param("chat/completions", _chat(tempreature=1), 400, "tempreature", id="misspelt field"),
    ],
)
def test_http_refuses_and_names_the_field(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, field: str
) -> None:
    answer = http.post(f"/v1/{path}", json=body)
    assert answer.status_code == status, answer.text[:500]
    error = answer.json()["error"]
    assert error["param"] == field
    assert field in error["message"]


def test_http_refuses_before_the_first_byte_of_a_stream(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json=_chat(temperature=-1, stream=True))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "temperature"


def test_http_refuses_a_body_of_ten_megabytes(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": _TEN_MEGABYTES})
    assert answer.status_code == 413
    assert "body" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"prompt": "\xff\xfe", "max_tokens": 2}', id="invalid UTF-8"),
        pytest.param(b'{"prompt": "\\ud800", "max_tokens": 2}', id="lone surrogate"),
        pytest.param(b'{"prompt": "x"', id="cut off"),
        pytest.param(b"[1, 2]", id="no object"),
        pytest.param(b"", id="empty"),
    ],
)
def test_http_refuses_a_body_that_is_no_json_text(http: httpx.Client, body: bytes) -> None:
    answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text[:500]
    assert answer.json()["error"]["message"]


def test_http_error_body_is_json_even_for_an_unknown_path(http: httpx.Client) -> None:
    answer = http.get("/v1/nothing")
    assert answer.status_code == 404
    assert json.loads(answer.text)["error"]["message"]


def _gateway_request(**fields: Any) -> gateway_pb2.GenerateRequest:
    request = gateway_pb2.GenerateRequest(prompt="Hello", max_tokens=2, temperature=0.0)
    request.MergeFrom(gateway_pb2.GenerateRequest(**fields))
    return request


@pytest.fixture
def refuse(client: GatewayClient) -> Iterator[Callable[[gateway_pb2.GenerateRequest], grpc.RpcError]]:
    """Send a request that must fail; after the test the gateway answers the next one."""

    def send(request: gateway_pb2.GenerateRequest) -> grpc.RpcError:
        with pytest.raises(grpc.RpcError) as caught:
            list(client.stub.Generate(request, timeout=60))
        return caught.value

    yield send
    assert list(client.stub.Generate(_gateway_request(), timeout=60))


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        pytest.param(_gateway_request(prompt=""), "INVALID_ARGUMENT", "prompt", id="empty prompt"),
        pytest.param(gateway_pb2.GenerateRequest(max_tokens=2), "INVALID_ARGUMENT", "prompt", id="missing prompt"),
        pytest.param(
            _gateway_request(chat=gateway_pb2.ChatMessages()), "INVALID_ARGUMENT", "chat", id="chat without messages"
        ),
        pytest.param(
            _gateway_request(chat=gateway_pb2.ChatMessages(messages=[gateway_pb2.ChatMessage(role="x", content="x")])),
            "INVALID_ARGUMENT",
            "chat",
            id="unknown role",
        ),
        pytest.param(
            _gateway_request(prompt=_LONGER_THAN_CONTEXT), "INVALID_ARGUMENT", "prompt", id="longer than the context"
        ),
        pytest.param(_gateway_request(model="nobody"), "NOT_FOUND", "model", id="unknown model"),
        pytest.param(_gateway_request(temperature=-1.0), "INVALID_ARGUMENT", "temperature", id="temperature -1"),
        pytest.param(_gateway_request(temperature=float("nan")), "INVALID_ARGUMENT", "temperature", id="NaN"),
        pytest.param(_gateway_request(max_tokens=0), "INVALID_ARGUMENT", "max_tokens", id="max_tokens 0"),
        pytest.param(
            _gateway_request(token_ids=gateway_pb2.TokenIds(ids=[1, _OUT_OF_VOCABULARY])),
            "INVALID_ARGUMENT",
            "token_ids",
            id="id out of vocabulary",
        ),
        pytest.param(
            _gateway_request(token_ids=gateway_pb2.TokenIds()), "INVALID_ARGUMENT", "token_ids", id="no token ids"
        ),
    ],
)
def test_grpc_refuses_and_names_the_field(
    refuse: Callable[[gateway_pb2.GenerateRequest], Any],
    request_: gateway_pb2.GenerateRequest,
    code: str,
    field: str,
) -> None:
    error = refuse(request_)
    assert error.code().name == code, error.details()
    assert field in error.details()
    assert dict(error.trailing_metadata())["specgrove-field"] == field


def test_grpc_refuses_a_message_of_ten_megabytes(refuse: Callable[[gateway_pb2.GenerateRequest], Any]) -> None:
    error = refuse(_gateway_request(prompt=_TEN_MEGABYTES))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "larger than" in error.details()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x1a\x02\xff\xfe", id="invalid UTF-8 in prompt"),
        pytest.param(b"\x1a\xff", id="cut off"),
    ],
)
def test_grpc_refuses_bytes_that_are_no_message(client: GatewayClient, message: bytes) -> None:
    raw = client.channel.unary_stream("/specgrove.proto.v1.GatewayService/Generate")
    with pytest.raises(grpc.RpcError) as caught:
        list(raw(message, timeout=60))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value.details()
    assert list(client.stub.Generate(_gateway_request(), timeout=60))


def _verifier_request(**fields: Any) -> verifier_pb2.VerifierGenerateRequest:
    defaults: dict[str, Any] = {
        "session_id": "bad-input",
        "epoch": 1,
        "prompt_token_ids": [1, 2, 3],
        "sampling": generation_pb2.SamplingParams(top_p=1),
        "stop": generation_pb2.StopConditions(max_tokens=2),
    }
    return verifier_pb2.VerifierGenerateRequest(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        pytest.param(_verifier_request(prompt_token_ids=[]), "INVALID_ARGUMENT", "prompt_token_ids", id="empty prompt"),
        pytest.param(
            _verifier_request(prompt_token_ids=[1] * 20_000), "INVALID_ARGUMENT", "prompt_token_ids", id="too long"
        ),
        pytest.param(
            _verifier_request(prompt_token_ids=[_OUT_OF_VOCABULARY]),
            "INVALID_ARGUMENT",
            "prompt_token_ids",
            id="id out of vocabulary",
        ),
        pytest.param(
            _verifier_request(committed_token_ids=[_OUT_OF_VOCABULARY]),
            "INVALID_ARGUMENT",
            "committed_token_ids",
            id="committed id out of vocabulary",
        ),
        pytest.param(
            _verifier_request(sampling=generation_pb2.SamplingParams(temperature=-1, top_p=1)),
            "INVALID_ARGUMENT",
            "temperature",
            id="temperature -1",
        ),
        pytest.param(
            _verifier_request(stop=generation_pb2.StopConditions()), "INVALID_ARGUMENT", "max_tokens", id="max_tokens 0"
        ),
        pytest.param(_verifier_request(model="nobody"), "NOT_FOUND", "model", id="unknown model"),
    ],
)
def test_verifier_refuses_and_names_the_field(
    cluster: LocalCluster, request_: verifier_pb2.VerifierGenerateRequest, code: str, field: str
) -> None:
    with grpc.insecure_channel(cluster.verifiers[0].address, options=CHANNEL_OPTIONS) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(request_, timeout=60))
        assert caught.value.code().name == code, caught.value.details()
        assert dict(caught.value.trailing_metadata())["specgrove-field"] == field
        assert list(stub.Generate(_verifier_request(), timeout=60))
