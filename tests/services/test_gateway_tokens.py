"""Text to ids and back on both faces: what a generation reads, wrong input refused by name; and what is served."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc
from specgrove.rpc import AioRpcError, StatusCode, open_channel
from specgrove.text import Tokenizer
from specgrove.version import VERSION
from support.fake_verifier import FakeVerifier
from support.gateway import MODEL, RunningGateway, running_gateway
from support.tiny_tokenizer import write_tiny_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Привет 👩‍👩‍👧"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier(tokenizer: Tokenizer) -> AsyncIterator[FakeVerifier]:
    fake = FakeVerifier(tokenizer, lambda prompt, seed: [*tokenizer.encode("Hello"), 2])
    await fake.start()
    yield fake
    await fake.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(folder: Path, verifier: FakeVerifier) -> AsyncIterator[RunningGateway]:
    async with running_gateway(folder, [verifier], max_body_bytes=64 * 1024) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(gateway: RunningGateway) -> AsyncIterator[Any]:
    async with open_channel(f"127.0.0.1:{gateway.ports.grpc}") as channel:
        yield gateway_pb2_grpc.GatewayServiceStub(channel)


async def tokenize(gateway: RunningGateway, **body: Any) -> dict[str, Any]:
    response = await gateway.http.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_the_ids_are_those_that_a_generation_reads(
    gateway: RunningGateway, verifier: FakeVerifier, stub: Any
) -> None:
    chat = gateway_pb2.ChatMessages(messages=[gateway_pb2.ChatMessage(**message) for message in MESSAGES])
    await gateway.chat(messages=MESSAGES)
    read = list(verifier.requests[-1].prompt_token_ids)
    assert (await tokenize(gateway, messages=MESSAGES))["tokens"] == read
    assert list((await stub.Tokenize(gateway_pb2.TokenizeRequest(chat=chat))).token_ids) == read
    await gateway.complete("Hello world")
    read = list(verifier.requests[-1].prompt_token_ids)
    assert (await tokenize(gateway, model=MODEL, prompt="Hello world"))["tokens"] == read
    assert list((await stub.Tokenize(gateway_pb2.TokenizeRequest(prompt="Hello world"))).token_ids) == read


async def test_the_answer_has_the_shape_of_vllm(gateway: RunningGateway, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Hello world")
    answer = await tokenize(gateway, prompt="Hello world", return_token_strs=True)
    assert answer == {
        "count": len(ids),
        "max_model_len": 256,
        "tokens": ids,
        "token_strs": [tokenizer.token_str(token_id) for token_id in ids],
    }
    assert (await tokenize(gateway, prompt=""))["count"] == 0
    assert (await tokenize(gateway, prompt="Hello"))["token_strs"] is None


async def test_the_assistants_turn_is_opened_only_where_it_is_wanted(
    gateway: RunningGateway, tokenizer: Tokenizer, stub: Any
) -> None:
    open_turn = (await tokenize(gateway, messages=MESSAGES))["tokens"]
    closed = (await tokenize(gateway, messages=MESSAGES, add_generation_prompt=False))["tokens"]
    opening = tokenizer.encode("<|start|>assistant\n")
    assert open_turn == [*closed, *opening]
    chat = gateway_pb2.ChatMessages(messages=[gateway_pb2.ChatMessage(**message) for message in MESSAGES])
    answer = await stub.Tokenize(gateway_pb2.TokenizeRequest(chat=chat, add_generation_prompt=False))
    assert list(answer.token_ids) == closed
    assert answer.max_context_len == 256


@pytest.mark.parametrize("text", ["Hello world", "👩‍👩‍👧 🌳", "<|start|>user\nHi<|end|>\n", "oak " * 3000])
async def test_detokenizing_gives_the_text_back(gateway: RunningGateway, stub: Any, text: str) -> None:
    ids = (await tokenize(gateway, prompt=text))["tokens"]
    response = await gateway.http.post("/detokenize", json={"model": MODEL, "tokens": ids})
    assert response.json() == {"prompt": text}
    assert (await stub.Detokenize(gateway_pb2.DetokenizeRequest(token_ids=ids))).text == text


async def test_ids_of_half_a_character_are_shown_as_broken(gateway: RunningGateway, tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("🌳")[:1]
    assert "\ufffd" in (await gateway.http.post("/detokenize", json={"tokens": first})).json()["prompt"]
    assert (await gateway.http.post("/detokenize", json={"tokens": []})).json()["prompt"] == ""


TOKENIZE_CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": ["Hello"]}, "prompt"),
    ({"prompt": "Hello", "messages": MESSAGES}, "prompt"),
    ({"prompt": "Hello", "add_generation_prompt": False}, "add_generation_prompt"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "alien", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{}] * 4097}, "messages.0.role"),
    ({"prompt": "Hello", "add_special_tokens": "yes"}, "add_special_tokens"),
    ({"prompt": "Hello", "return_token_strs": 1}, "return_token_strs"),
    ({"prompt": "Hello", "model": "gpt-4o"}, "model"),
    ({"prompt": "Hello", "max_tokens": 3}, "max_tokens"),
    ({"messages": MESSAGES, "chat_template": "{{ 1 }}"}, "chat_template"),
    ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools"),
    ({"messages": MESSAGES, "continue_final_message": True}, "continue_final_message"),
]
DETOKENIZE_CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "tokens"),
    ({"tokens": None}, "tokens"),
    ({"tokens": "5"}, "tokens"),
    ({"tokens": [5, "6"]}, "tokens.1"),
    ({"tokens": [True]}, "tokens.0"),
    ({"tokens": [1.0]}, "tokens.0"),
    ({"tokens": [-1]}, "tokens.0"),
    ({"tokens": [10**30]}, "tokens.0"),
    ({"tokens": [9999]}, "tokens"),
    ({"tokens": [5], "model": "gpt-4o"}, "model"),
    ({"tokens": [5], "skip_special_tokens": True}, "skip_special_tokens"),
]


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        *(("/tokenize", body, name) for body, name in TOKENIZE_CASES),
        *(("/detokenize", body, name) for body, name in DETOKENIZE_CASES),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_the_wrong_field_is_named(gateway: RunningGateway, path: str, body: dict[str, Any], name: str) -> None:
    response = await gateway.http.post(path, json=body)
    error = response.json()["error"]
    assert response.status_code == (404 if name == "model" else 400)
    assert (error["param"], error["type"]) == (name, "invalid_request_error")
    assert name.split(".")[-1] in error["message"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_bodies_have_the_bounds_of_all_bodies(gateway: RunningGateway, path: str) -> None:
    large = await gateway.http.post(path, json={"prompt": "a" * 100_000})
    as_form = await gateway.http.post(path, data={"prompt": "Hi"})
    broken = await gateway.http.post(path, content=b"[1]", headers={"content-type": "application/json"})
    assert [large.status_code, as_form.status_code, broken.status_code] == [413, 415, 400]
    assert (await gateway.http.get(path)).status_code == 405


GRPC_CASES: list[tuple[str, Any, str]] = [
    ("Tokenize", gateway_pb2.TokenizeRequest(), "prompt"),
    ("Tokenize", gateway_pb2.TokenizeRequest(chat=gateway_pb2.ChatMessages()), "chat"),
    ("Tokenize", gateway_pb2.TokenizeRequest(prompt="x", model="gpt-4o"), "model"),
    ("Tokenize", gateway_pb2.TokenizeRequest(prompt="x", add_generation_prompt=True), "add_generation_prompt"),
    ("Tokenize", gateway_pb2.TokenizeRequest(prompt="x" * 100_000), "prompt"),
    ("Detokenize", gateway_pb2.DetokenizeRequest(token_ids=[9999]), "token_ids"),
    ("Detokenize", gateway_pb2.DetokenizeRequest(token_ids=[5] * 100_000), "token_ids"),
    ("Detokenize", gateway_pb2.DetokenizeRequest(model="gpt-4o"), "model"),
]


@pytest.mark.parametrize(("method", "request_message", "name"), GRPC_CASES, ids=lambda value: "")
async def test_grpc_names_the_wrong_field(stub: Any, method: str, request_message: Any, name: str) -> None:
    with pytest.raises(AioRpcError) as raised:
        await getattr(stub, method)(request_message, timeout=10)
    assert raised.value.code() is (StatusCode.NOT_FOUND if name == "model" else StatusCode.INVALID_ARGUMENT)
    assert dict(raised.value.trailing_metadata() or ())["specgrove-field"] == name


async def test_the_listed_limits_are_those_that_hold(
    gateway: RunningGateway, tokenizer: Tokenizer, verifier: FakeVerifier, stub: Any
) -> None:
    (model,) = (await gateway.http.get("/v1/models")).json()["data"]
    assert (model["max_model_len"], model["vocab_size"]) == (verifier.max_context_len, tokenizer.vocab_size)
    (listed,) = (await stub.ListModels(gateway_pb2.ListModelsRequest())).models
    assert (listed.max_context_len, listed.vocab_size) == (model["max_model_len"], model["vocab_size"])
    room = model["max_model_len"]
    assert (await gateway.complete([5] * (room - 1), max_tokens=1)).status_code == 200
    for refused in (await gateway.complete([5] * room), await gateway.complete([5] * (room - 1), max_tokens=2)):
        assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert (await gateway.complete([model["vocab_size"] - 1], max_tokens=1)).status_code == 200
    assert (await gateway.complete([model["vocab_size"]], max_tokens=1)).status_code == 400


async def test_tokenizing_needs_no_verifier_and_no_limit_is_made_up(folder: Path, tokenizer: Tokenizer) -> None:
    async with running_gateway(folder, [], wait_ready=False, redis_url="redis://127.0.0.1:9/0") as gateway:
        answer = await tokenize(gateway, prompt="Hello")
        assert (answer["tokens"], answer["max_model_len"]) == (tokenizer.encode("Hello"), None)
        assert (await gateway.http.post("/detokenize", json={"tokens": [9999]})).status_code == 400
        assert "max_model_len" not in (await gateway.http.get("/v1/models")).json()["data"][0]


async def test_the_version_is_that_of_the_package(gateway: RunningGateway, stub: Any) -> None:
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == VERSION
    assert (await gateway.http.get("/version")).json() == {"version": VERSION}
    assert (await stub.ListModels(gateway_pb2.ListModelsRequest())).version == VERSION
