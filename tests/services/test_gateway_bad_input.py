"""Wrong input gets a 4xx that names the field, and the next request is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.gateway import MODEL, RunningGateway, gateway_that_says_hello_world, says_hello_world
from support.tiny_tokenizer import write_tiny_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(folder: Path) -> AsyncIterator[RunningGateway]:
    async with gateway_that_says_hello_world(folder) as running:
        yield running


CHAT_CASES: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ({"messages": "Hello"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "alien", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 257}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": "", "name": "me"}]}, "messages.0.name"),
    ({"messages": [{"role": "user", "content": "", "tool_calls": [None]}]}, "messages.0.tool_calls"),
    ({"messages": [{}] * 4097}, "messages"),
    ({"messages": [{"role": "user", "content": "", **{f"k{n}": 1 for n in range(70)}}]}, "messages.0"),
    ({"messages": [{"role": "user", "content": "oak " * 300}]}, "messages"),
    ({"model": "gpt-4o"}, "model"),
    ({"model": 3}, "model"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"top_k": 10**30}, "top_k"),
    ({"min_tokens": 10**30}, "min_tokens"),
    ({"priority": 1.5}, "priority"),
    ({"priority": "1"}, "priority"),
    ({"priority": True}, "priority"),
    ({"priority": 2**31}, "priority"),
    ({"priority": -(2**31) - 1}, "priority"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 100_000}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
    ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
    ({"min_tokens": 9, "max_tokens": 4}, "min_tokens"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": 3}, "stop"),
    ({"stop": ["x", 1, 1]}, "stop.1"),
    ({"stop_token_ids": [5] * 65}, "stop_token_ids"),
    ({"stop_token_ids": [9999]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 17}, "n"),
    ({"n": 10**30}, "n"),
    ({"n": "2"}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": True}, "n"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"presence_penalty": "1"}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"frequency_penalty": True}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"repetition_penalty": "x"}, "repetition_penalty"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 2**40}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": "3"}, "top_logprobs"),
    ({"echo": True}, "echo"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"5": -100.5}}, "logit_bias"),
    ({"logit_bias": {"9999": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 400: 1}}, "logit_bias"),
    ({"logit_bias": {"5": 10**400}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"05": 1}}, "logit_bias"),
    ({"logit_bias": {"oak": 1}}, "logit_bias"),
    ({"logit_bias": {"5": "1"}}, "logit_bias"),
    ({"logit_bias": {"5": True}}, "logit_bias"),
    ({"logit_bias": {"5": None}}, "logit_bias"),
    ({"logit_bias": [5, 1]}, "logit_bias"),
    ({"logit_bias": {str(n): 1 for n in range(301)}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
    ({"session_id": "a b"}, "session_id"),
    ({"session_id": "x" * 200}, "session_id"),
    ({"speculation": {"max_nodes": -1}}, "speculation.max_nodes"),
    ({"speculation": {"rule": "greedy"}}, "speculation.rule"),
    ({"speculation": {"rule": 2}}, "speculation.rule"),
    ({"speculation": {"expansion": [0]}}, "speculation.expansion"),
    ({"speculation": {"expansion": [65]}}, "speculation.expansion"),
    ({"speculation": {"expansion": [1] * 65}}, "speculation.expansion"),
    ({"speculation": {"expansion": ["x"]}}, "speculation.expansion.0"),
    ({"speculation": {"expansion": 3}}, "speculation.expansion"),
    ({"speculation": True}, "speculation"),
    ({"tempratures": 1}, "tempratures"),
    ({"best_of": 1}, "best_of"),
    ({"prompt": "Hello"}, "prompt"),
]


@pytest.mark.parametrize(("fields", "name"), CHAT_CASES, ids=lambda value: value if isinstance(value, str) else "")
async def test_chat_names_the_wrong_field(gateway: RunningGateway, fields: dict[str, Any], name: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}
    response = await gateway.http.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert response.status_code == (404 if error["code"] == "model_not_found" else 400)
    assert error["param"] is not None
    assert error["param"] == name or error["param"].startswith(f"{name}.")
    assert name.split(".")[-1] in error["message"]
    assert error["type"] == "invalid_request_error"


async def test_an_unknown_field_of_a_content_part_is_named_as_the_client_wrote_it(gateway: RunningGateway) -> None:
    part = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}, "list[TextPart]": 1}
    response = await gateway.chat(messages=[{"role": "user", "content": [part]}])
    error = response.json()["error"]
    assert error["param"] == "messages.0.content.0.cache_control"
    assert "messages.0.content.0.list[TextPart]: unknown field" in error["message"]


async def test_too_many_fields_in_the_body_itself_name_no_field(gateway: RunningGateway) -> None:
    response = await gateway.chat(**{f"k{n}": 1 for n in range(1000)})
    assert response.status_code == 400
    assert response.json()["error"]["param"] is None
    assert "at most 64" in response.json()["error"]["message"]


async def test_chat_also_refuses_before_the_first_byte_of_a_stream(gateway: RunningGateway) -> None:
    assert (await gateway.chat(stream=True, temperature=-1)).status_code == 400
    assert await says_hello_world(gateway)


PROMPT_CASES = [
    "",
    [],
    [[]],
    ["a", "b"],
    [[1], [2]],
    ["", ""],
    [1, "a"],
    [True],
    [400_000],
    [-1],
    5,
    None,
    {"a": 1},
    "oak " * 300,
]


@pytest.mark.parametrize("prompt", PROMPT_CASES, ids=[str(n) for n in range(len(PROMPT_CASES))])
async def test_completions_name_a_wrong_prompt(gateway: RunningGateway, prompt: Any) -> None:
    response = await gateway.complete(prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": "2"}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"echo": 1}, "echo"),
        ({"n": -3}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": -(10**30)}, "best_of"),
        ({"echo": True, "max_tokens": 0}, "max_tokens"),
    ],
)
async def test_completions_name_the_wrong_field(gateway: RunningGateway, fields: dict[str, Any], name: str) -> None:
    response = await gateway.complete(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert name in response.json()["error"]["message"]


@pytest.mark.parametrize("prompt", [["Hello"], [[5, 6]], [5, 6], "Hello"])
async def test_completions_take_one_prompt_in_each_spelling(gateway: RunningGateway, prompt: Any) -> None:
    assert (await gateway.complete(prompt)).status_code == 200


async def test_values_that_ask_for_nothing_are_accepted(gateway: RunningGateway) -> None:
    response = await gateway.chat(
        n=1,
        presence_penalty=0.0,
        frequency_penalty=0,
        logprobs=False,
        top_logprobs=None,
        logit_bias={},
        response_format={"type": "text"},
        tools=[],
        tool_choice="none",
        user="me",
        metadata={"a": "b"},
        store=False,
        temperature=None,
        stop=None,
        max_tokens=None,
    )
    assert response.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b'{"model": "\xff\xfe"}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": 1e999}',
        b"[" * 50_000,
    ],
    ids=["empty", "open", "list", "string", "utf8", "surrogate", "nan", "infinity", "1e999", "deep"],
)
async def test_a_body_that_is_not_strict_json_is_a_400(gateway: RunningGateway, body: bytes) -> None:
    response = await gateway.http.post(
        "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert await says_hello_world(gateway)


async def test_ten_megabytes_are_refused(gateway: RunningGateway) -> None:
    response = await gateway.chat("a" * 10_000_000)
    assert response.status_code == 413
    assert "65536" in response.json()["error"]["message"]
    assert await says_hello_world(gateway)


async def test_a_chunked_body_is_counted_while_it_is_read(gateway: RunningGateway) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 4096

    response = await gateway.http.post(
        "/v1/completions", content=endless(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413


async def test_wrong_content_type_method_and_path_get_json_errors(gateway: RunningGateway) -> None:
    as_form = await gateway.http.post("/v1/completions", data={"prompt": "Hi"})
    as_get = await gateway.http.get("/v1/completions")
    elsewhere = await gateway.http.post("/v1/embeddings", json={})
    assert [as_form.status_code, as_get.status_code, elsewhere.status_code] == [415, 405, 404]
    assert as_get.headers["allow"] == "POST"
    for response in (as_form, as_get, elsewhere):
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_session_id_comes_by_header_or_field_but_not_both_ways(gateway: RunningGateway) -> None:
    def post(header: str, **fields: Any) -> Any:
        body = {"model": MODEL, "prompt": "Hello", **fields}
        return gateway.http.post("/v1/completions", json=body, headers={"x-session-id": header})

    assert (await post("one")).headers["x-session-id"] == "one"
    refused = await post("one", session_id="two")
    assert refused.json()["error"]["param"] == "session_id"


async def test_a_burst_of_bad_requests_leaves_nothing_behind(gateway: RunningGateway) -> None:
    await asyncio.gather(*(gateway.chat(**{json.dumps(n): 1}) for n in range(30)))
    assert (await gateway.metrics())["specgrove:num_requests_running"] == 0
    assert await says_hello_world(gateway)
