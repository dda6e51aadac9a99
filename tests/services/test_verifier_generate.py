"""The verifier's Generate and Describe over a real socket, on a tiny model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from specgrove.proto.v1 import generation_pb2, verifier_pb2
from specgrove.rpc import AioRpcError, StatusCode
from specgrove.runtime.loading import LoadedModel, load_model
from support.tiny_models import VOCAB_SIZE, write_tiny_model
from support.tiny_verifier import TinyVerifier, request_message, running_verifier


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_tiny_model(tmp_path_factory.mktemp("target"), seed=1), "float32")


@pytest.fixture
async def verifier(target: LoadedModel) -> AsyncIterator[TinyVerifier]:
    async with running_verifier(target) as running:
        yield running


async def test_tokens_stream_and_the_last_message_says_why_it_ended(verifier: TinyVerifier) -> None:
    messages = [message async for message in verifier.stub.Generate(request_message([5, 6, 7], 9), timeout=30)]
    assert sum(len(message.token_ids) for message in messages) == 9
    assert all(message.epoch == 1 for message in messages)
    assert [message.HasField("stats") for message in messages] == [False] * (len(messages) - 1) + [True]
    assert [message.finish_reason for message in messages[:-1]] == [generation_pb2.FINISH_REASON_UNSPECIFIED] * 8
    assert messages[-1].finish_reason == generation_pb2.FINISH_REASON_LENGTH
    assert messages[-1].stats.num_committed_tokens == 9


async def test_eight_streams_equal_their_solo_runs_with_fewer_forwards_than_tokens(verifier: TinyVerifier) -> None:
    requests = [
        request_message([5 + n, 9, 7 * n + 3], 16, session_id=f"s{n}", temperature=0.8, seed=n) for n in range(8)
    ]
    solo = [(await verifier.generate(request)).token_ids for request in requests]
    forwards = verifier.num_forwards
    together = await asyncio.gather(*(verifier.generate(request) for request in requests))
    assert [answer.token_ids for answer in together] == solo
    assert verifier.num_forwards - forwards < 8 * 16 / 2
    await verifier.assert_empty()


async def test_a_stop_string_is_named(verifier: TinyVerifier) -> None:
    plain = await verifier.generate(request_message([5, 6], 12))
    wanted = verifier.text_of(plain.token_ids[3:5])
    answer = await verifier.generate(request_message([5, 6], 12, stop_strings=["\x01", wanted]))
    assert answer.last.finish_reason == generation_pb2.FINISH_REASON_STOP
    assert answer.last.stop_string == wanted
    assert answer.token_ids == plain.token_ids[: len(answer.token_ids)]


async def test_a_resumed_session_goes_on_under_a_new_epoch(verifier: TinyVerifier) -> None:
    whole = await verifier.generate(request_message([5, 6], 12, temperature=1.0, seed=4))
    resumed = await verifier.generate(
        request_message([5, 6], 12, temperature=1.0, seed=4, epoch=2, committed_token_ids=whole.token_ids[:5])
    )
    assert whole.token_ids[:5] + resumed.token_ids == whole.token_ids
    assert resumed.last.epoch == 2


async def test_a_client_that_cancels_frees_everything(verifier: TinyVerifier) -> None:
    call = verifier.stub.Generate(request_message([5], 250), timeout=30)
    assert (await call.read()).token_ids
    call.cancel()
    await verifier.assert_empty()
    assert len((await verifier.generate(request_message([5], 4))).token_ids) == 4


async def test_a_client_whose_deadline_passes_frees_everything(verifier: TinyVerifier) -> None:
    with pytest.raises(AioRpcError) as caught:
        await verifier.generate(request_message([5], 250), timeout=0.05)
    assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
    await verifier.assert_empty()


async def test_a_newer_owner_ends_the_older_ones_stream(verifier: TinyVerifier) -> None:
    old = verifier.stub.Generate(request_message([5], 250, epoch=1), timeout=30)
    await old.read()
    new = asyncio.create_task(verifier.generate(request_message([5], 6, epoch=2)))
    with pytest.raises(AioRpcError) as caught:
        while True:
            await old.read()
    assert caught.value.code() is StatusCode.ABORTED
    assert len((await new).token_ids) == 6


async def test_an_older_epoch_is_refused(verifier: TinyVerifier) -> None:
    await verifier.generate(request_message([5], 2, epoch=3))
    with pytest.raises(AioRpcError) as caught:
        await verifier.generate(request_message([5], 2, epoch=2))
    assert caught.value.code() is StatusCode.ABORTED
    assert "taken" in (caught.value.details() or "")
    await verifier.generate(request_message([5], 2, epoch=2, session_id="another"))


async def test_what_does_not_fit_the_queue_is_refused_with_a_time_to_come_back(target: LoadedModel) -> None:
    async with running_verifier(target, max_sessions=1, max_waiting=1) as verifier:
        gate = threading.Event()
        verifier.service._engine._inbox.command(lambda: gate.wait(60) and None)  # nothing may end while we look
        calls = [verifier.stub.Generate(request_message([5], 240, session_id=f"s{n}"), timeout=60) for n in range(2)]
        await verifier.until(lambda: verifier.service._load.num_generations == 2)
        with pytest.raises(AioRpcError) as caught:
            await verifier.generate(request_message([5], 4, session_id="late"))
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "retry-after-s" in dict(caught.value.trailing_metadata() or ())
        gate.set()
        for call in calls:
            call.cancel()
        await verifier.until(lambda: verifier.service._load.num_generations == 0)
        await verifier.generate(request_message([5], 4, session_id="late"))


async def test_more_tokens_than_may_be_open_are_refused(target: LoadedModel) -> None:
    async with running_verifier(target, kv_tokens=256, max_open_tokens=256) as verifier:
        gate = threading.Event()
        verifier.service._engine._inbox.command(lambda: gate.wait(60) and None)
        call = verifier.stub.Generate(request_message([5] * 200, 4, session_id="long"), timeout=60)
        await verifier.until(lambda: verifier.service._load.num_tokens == 200)
        with pytest.raises(AioRpcError) as caught:
            await verifier.generate(request_message([5] * 40, 4, session_id="late", committed_token_ids=[5] * 17))
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "57 more are over the limit of 256" in (caught.value.details() or "")
        assert verifier.sample("specgrove:admission_rejections_total", reason="tokens") == 1
        gate.set()
        assert [message async for message in call]
        await verifier.generate(request_message([5] * 40, 4, session_id="late"))


async def test_the_priority_of_a_request_decides_who_is_let_in(target: LoadedModel) -> None:
    async with running_verifier(target, max_sessions=1) as verifier:
        gate = threading.Event()
        verifier.service._engine._inbox.command(lambda: gate.wait(60) and None)
        order: list[int] = []

        async def call(priority: int) -> None:
            await verifier.generate(request_message([5, 6], 3, session_id=f"{priority}", priority=priority))
            order.append(priority)

        calls = []
        for number, priority in enumerate((2, 0, -1)):
            calls.append(asyncio.create_task(call(priority)))
            await verifier.until(lambda expected=number + 1: verifier.service._load.num_generations == expected)
        gate.set()
        await asyncio.gather(*calls)
        assert order == [-1, 0, 2]


BAD_REQUESTS: list[tuple[dict[str, Any], StatusCode, str]] = [
    ({"prompt": []}, StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"prompt": [VOCAB_SIZE]}, StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"prompt": [2**32 - 1]}, StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"prompt": [5] * 400}, StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"max_tokens": 0}, StatusCode.INVALID_ARGUMENT, "max_tokens"),
    ({"min_tokens": 9}, StatusCode.INVALID_ARGUMENT, "min_tokens"),
    ({"temperature": -1.0}, StatusCode.INVALID_ARGUMENT, "temperature"),
    ({"temperature": float("nan")}, StatusCode.INVALID_ARGUMENT, "temperature"),
    ({"top_p": 0.0}, StatusCode.INVALID_ARGUMENT, "top_p"),
    ({"stop_strings": [""]}, StatusCode.INVALID_ARGUMENT, "stop"),
    ({"stop_token_ids": [VOCAB_SIZE]}, StatusCode.INVALID_ARGUMENT, "stop_token_ids"),
    ({"model": "gpt-5"}, StatusCode.NOT_FOUND, "model"),
    ({"rule": 7}, StatusCode.INVALID_ARGUMENT, "speculation.rule"),
    ({"expansion": [0]}, StatusCode.INVALID_ARGUMENT, "speculation.expansion"),
]


@pytest.mark.parametrize(("change", "code", "field"), BAD_REQUESTS)
async def test_a_bad_request_names_its_field_and_the_next_is_answered(
    verifier: TinyVerifier, change: dict[str, Any], code: StatusCode, field: str
) -> None:
    with pytest.raises(AioRpcError) as caught:
        await verifier.generate(request_message(**{"prompt": [5], "max_tokens": 4, **change}))
    assert caught.value.code() is code
    assert dict(caught.value.trailing_metadata() or ())["specgrove-field"] == field
    assert len((await verifier.generate(request_message([5], 4))).token_ids) == 4
    await verifier.assert_empty()


async def test_describe_says_what_is_served(verifier: TinyVerifier, target: LoadedModel) -> None:
    description = await verifier.stub.Describe(verifier_pb2.DescribeRequest(), timeout=10)
    assert description.verifier_id == "tiny-verifier"
    assert description.model == "tiny"
    assert description.vocab_size == VOCAB_SIZE
    assert description.vocab_hash == verifier.vocab_hash
    assert description.max_context_len == target.max_context_len
    assert (description.num_running, description.num_waiting, description.num_drafters) == (0, 0, 0)


async def test_a_folder_without_a_tokenizer_serves_ids_but_no_stop_strings(tmp_path: Path) -> None:
    loaded = load_model(write_tiny_model(tmp_path, seed=1, has_tokenizer=False), "float32")
    async with running_verifier(loaded) as verifier:
        assert len((await verifier.generate(request_message([5], 4))).token_ids) == 4
        with pytest.raises(AioRpcError) as caught:
            await verifier.generate(request_message([5], 4, stop_strings=["a"]))
        assert dict(caught.value.trailing_metadata() or ())["specgrove-field"] == "stop"
