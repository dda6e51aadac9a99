"""Logprobs and echo at the faces: one entry a token, aligned with text that is held back, streamed as unstreamed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc
from specgrove.rpc import open_channel
from specgrove.text import Tokenizer
from support.fake_verifier import Behaviour, FakeVerifier
from support.gateway import MODEL, RunningGateway, running_gateway
from support.tiny_tokenizer import write_tiny_tokenizer

ANSWER = "Hello 👩‍👩‍👧 wörld, ENDING"
STOPS: list[dict[str, Any]] = [{}, {"stop": ["ENDED", "zzz"]}, {"stop": "END"}, {"stop": "👧"}, {"max_tokens": 3}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@asynccontextmanager
async def _gateway(folder: Path, *behaviours: Behaviour) -> AsyncIterator[RunningGateway]:
    tokenizer = Tokenizer.load(folder)
    fakes = [
        FakeVerifier(
            tokenizer, lambda prompt, seed: [*tokenizer.encode(ANSWER), 2], verifier_id=f"{n}", behaviour=behaviour
        )
        for n, behaviour in enumerate(behaviours or (Behaviour(),))
    ]
    for fake in fakes:
        await fake.start()
    async with running_gateway(folder, fakes) as gateway:
        yield gateway
    for fake in fakes:
        await fake.stop()


@pytest.fixture
async def gateway(folder: Path) -> AsyncIterator[RunningGateway]:
    async with _gateway(folder) as running:
        yield running


async def _streamed(create: Any, **fields: Any) -> tuple[list[Any], Any]:
    stream = await create(model=MODEL, stream=True, stream_options={"include_usage": True}, **fields)
    chunks = [chunk async for chunk in stream]
    return [chunk.choices[0] for chunk in chunks if chunk.choices], chunks[-1].usage


@pytest.mark.parametrize("fields", STOPS, ids=str)
async def test_chat_has_one_entry_a_token_whose_bytes_join_to_the_text(
    gateway: RunningGateway, fields: dict[str, Any]
) -> None:
    create = gateway.openai.chat.completions.create
    asked = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 3, **fields}
    whole = await create(model=MODEL, **asked)
    choice, content = whole.choices[0], whole.choices[0].logprobs.content
    assert len(content) == whole.usage.completion_tokens
    text = b"".join(bytes(entry.bytes or ()) for entry in content).decode(errors="replace")
    assert text.startswith(choice.message.content.rstrip("\ufffd"))
    if not fields:
        assert (content[-1].token, content[-1].bytes) == ("<|end|>", None)
        assert text == choice.message.content
    assert any(entry.token.startswith("\\x") for entry in content) or "max_tokens" in fields
    for entry in content:
        assert [top.logprob for top in entry.top_logprobs] == [0.0, -1.0, -2.0]
        assert (entry.logprob, entry.token) == (-1.0, entry.top_logprobs[1].token)
    choices, usage = await _streamed(create, **asked)
    assert [entry for part in choices if part.logprobs for entry in part.logprobs.content] == content
    assert "".join(part.delta.content or "" for part in choices) == choice.message.content
    assert usage == whole.usage


@pytest.mark.parametrize("fields", STOPS, ids=str)
async def test_completions_have_the_older_shape_with_offsets_into_the_text(
    gateway: RunningGateway, fields: dict[str, Any]
) -> None:
    create = gateway.openai.completions.create
    asked = {"prompt": "Hi", "logprobs": 2, **fields}
    whole = await create(model=MODEL, **asked)
    choice, scored = whole.choices[0], whole.choices[0].logprobs
    assert len(scored.tokens) == len(scored.text_offset) == len(scored.top_logprobs) == whole.usage.completion_tokens
    assert scored.token_logprobs == [-1.0] * whole.usage.completion_tokens
    assert all(
        len(top) == 2 and top[name] == -1.0 for top, name in zip(scored.top_logprobs, scored.tokens, strict=True)
    )
    for token, offset in zip(scored.tokens, scored.text_offset, strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert ANSWER[offset:].startswith(token)
    choices, usage = await _streamed(create, **asked)
    parts = [part.logprobs for part in choices if part.logprobs]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(scored, name)
    assert "".join(part.text for part in choices) == choice.text
    assert usage == whole.usage


async def test_no_logprobs_where_none_are_asked_and_no_tops_where_none(gateway: RunningGateway) -> None:
    assert (await gateway.complete()).json()["choices"][0]["logprobs"] is None
    assert (await gateway.complete(logprobs=False)).json()["choices"][0]["logprobs"] is None
    assert (await gateway.chat(logprobs=False, top_logprobs=0)).json()["choices"][0]["logprobs"] is None
    assert (await gateway.complete(logprobs=0)).json()["choices"][0]["logprobs"]["top_logprobs"] is None
    [first, *_] = (await gateway.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert first["top_logprobs"] == []


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("is_text", [False, True])
async def test_echo_puts_the_prompt_first(
    gateway: RunningGateway, tokenizer: Tokenizer, is_stream: bool, is_text: bool
) -> None:
    prompt_ids = tokenizer.encode("oak é tree")
    asked: dict[str, Any] = {"prompt": "oak é tree" if is_text else prompt_ids, "echo": True, "logprobs": 1}
    if is_stream:
        choices, usage = await _streamed(gateway.openai.completions.create, **asked)
        text = "".join(part.text for part in choices)
        parts = [part.logprobs for part in choices if part.logprobs]
        names = [name for part in parts for name in part.tokens]
        offsets = [offset for part in parts for offset in part.text_offset]
        values = [value for part in parts for value in part.token_logprobs]
        tops = [top for part in parts for top in part.top_logprobs]
    else:
        whole = await gateway.openai.completions.create(model=MODEL, **asked)
        usage, text, scored = whole.usage, whole.choices[0].text, whole.choices[0].logprobs
        assert scored is not None
        names, offsets, values, tops = scored.tokens, scored.text_offset, scored.token_logprobs, scored.top_logprobs
    assert text == "oak é tree" + ANSWER
    assert usage.prompt_tokens == len(prompt_ids)
    assert len(names) == usage.total_tokens
    assert values == [None] + [-1.0] * (usage.total_tokens - 1)
    assert tops[0] is None
    for token, offset in zip(names, offsets, strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert text[offset:].startswith(token)


async def test_echo_without_logprobs_asks_the_verifier_for_nothing(gateway: RunningGateway) -> None:
    answer = (await gateway.complete("oak", echo=True)).json()["choices"][0]
    assert (answer["text"], answer["logprobs"]) == ("oak" + ANSWER, None)


async def test_a_prompt_of_one_token_is_echoed_with_a_null(gateway: RunningGateway) -> None:
    scored = (await gateway.complete([70], echo=True, logprobs=1)).json()["choices"][0]["logprobs"]
    assert scored["token_logprobs"][:2] == [None, -1.0]


@pytest.mark.parametrize("die_after", [0, 4])
async def test_after_a_failover_each_token_has_its_entry_once(folder: Path, die_after: int) -> None:
    dying = Behaviour(die_after=die_after)
    async with _gateway(folder, dying, Behaviour(num_running=5)) as gateway:  # the loaded one comes second
        answer = (await gateway.complete("oak", echo=True, logprobs=1)).json()
        scored = answer["choices"][0]["logprobs"]
        assert answer["choices"][0]["text"] == "oak" + ANSWER
        assert len(scored["tokens"]) == answer["usage"]["total_tokens"]
        assert scored["token_logprobs"].count(None) == 1


async def test_grpc_sends_ids_and_logprobs_side_by_side(gateway: RunningGateway, tokenizer: Tokenizer) -> None:
    async with open_channel(f"127.0.0.1:{gateway.ports.grpc}") as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        asked = gateway_pb2.GenerateRequest(prompt="oak tree", top_logprobs=2, echo=True)
        first, *rest = [part async for part in stub.Generate(asked, timeout=10)]
        plain = [part async for part in stub.Generate(gateway_pb2.GenerateRequest(prompt="oak tree"), timeout=10)]
    assert first.echo.text == "oak tree"
    assert list(first.echo.token_ids) == tokenizer.encode("oak tree")
    assert len(first.echo.logprobs) == len(first.echo.token_ids) - 1
    assert all(len(part.logprobs) == len(part.token_ids) for part in rest)
    assert sum(len(part.logprobs) for part in rest) == rest[-1].usage.completion_tokens
    assert [token for part in rest for score in part.logprobs for token in score.top_token_ids[1:2]] == [
        token_id for part in rest for token_id in part.token_ids
    ]
    assert not any(part.logprobs or part.HasField("echo") for part in plain)
