"""The OpenAI face over real sockets: what clients send, what they get, and what happens when they leave."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from specgrove.proto.v1 import generation_pb2
from specgrove.text import Tokenizer
from specgrove_gateway.openai_http import endpoints
from specgrove_gateway.openai_http.body import json_object
from support.fake_verifier import FakeVerifier
from support.gateway import MODEL, RunningGateway, running_gateway
from support.tiny_tokenizer import write_tiny_tokenizer
from support.waiting import until

ANSWER = "Hello 👩‍👩‍👧 world, the END of 🌳 text."
EOS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture
async def verifier(tokenizer: Tokenizer) -> AsyncIterator[FakeVerifier]:
    ids = [*tokenizer.encode(ANSWER, add_special_tokens=False), EOS, *tokenizer.encode("never shown")]

    def script(prompt: Sequence[int], seed: int) -> Sequence[int]:
        return ids

    fake = FakeVerifier(tokenizer, script)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def gateway(folder: Path, verifier: FakeVerifier) -> AsyncIterator[RunningGateway]:
    async with running_gateway(folder, [verifier], heartbeat_s=0.3) as gateway:
        yield gateway


async def test_openai_client_streams_a_chat_with_usage_and_finish_reason(
    gateway: RunningGateway, tokenizer: Tokenizer
) -> None:
    stream = await gateway.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(tokenizer.encode(ANSWER)) + 1  # EOS counts
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    figures = chunks[-1].model_extra["metrics"]["speculative_decoding"]  # type: ignore[index]
    assert figures["acceptance_histogram"] == [4, 3, 3]
    assert figures["draft_acceptance_rate"] == pytest.approx(9 / 40)
    assert figures["num_spec_steps"] == 10
    assert figures["accepted_per_pos"] == [6, 3]


async def test_openai_client_gets_the_same_answer_whole(gateway: RunningGateway) -> None:
    whole = await gateway.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], seed=7
    )
    assert whole.choices[0].message.content == ANSWER
    assert whole.choices[0].finish_reason == "stop"
    assert whole.model_extra is not None
    assert whole.model_extra["seed"] == 7
    completion = await gateway.openai.completions.create(model=MODEL, prompt="Hello")
    assert completion.choices[0].text == ANSWER
    stream = await gateway.openai.completions.create(model=MODEL, prompt="Hello", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == ANSWER


async def test_openai_client_lists_the_model(gateway: RunningGateway) -> None:
    models = [model async for model in gateway.openai.models.list()]
    assert [model.id for model in models] == [MODEL]
    assert (await gateway.openai.models.retrieve(MODEL)).model_extra["max_model_len"] == 256  # type: ignore[index]
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.models.retrieve("other")


async def test_raw_stream_is_sse_that_ends_with_done(gateway: RunningGateway) -> None:
    response = await gateway.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "stop"
    assert "speculative_decoding" in last["metrics"]
    assert str(last["seed"]) == response.headers["x-specgrove-seed"]


async def test_request_reaches_the_verifier_as_asked(
    gateway: RunningGateway, verifier: FakeVerifier, tokenizer: Tokenizer
) -> None:
    response = await gateway.complete(
        [5, 6, 7],
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.25,
        seed=2**64 - 1,
        max_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        stop=["zzz"],
        stop_token_ids=[11],
        session_id="s-1",
        priority=-3,
        speculation={"enabled": False, "max_nodes": 4, "max_depth": 2, "rule": "mss", "expansion": [2, 1]},
        user="somebody",
    )
    assert response.status_code == 200
    assert response.headers["x-session-id"] == "s-1"
    (sent,) = verifier.requests
    assert list(sent.prompt_token_ids) == [5, 6, 7]
    assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.top_k) == (0, 0.5, 3)
    assert (sent.sampling.min_p, sent.sampling.seed) == (0.25, 2**64 - 1)
    assert (sent.stop.max_tokens, sent.stop.min_tokens, sent.stop.ignore_eos) == (9, 2, True)
    assert (list(sent.stop.stop_strings), list(sent.stop.stop_token_ids)) == (["zzz"], [11])
    assert (sent.speculation.disabled, sent.speculation.max_nodes, sent.speculation.max_depth) == (True, 4, 2)
    assert sent.speculation.rule == generation_pb2.VERIFICATION_RULE_MSS
    assert list(sent.speculation.expansion) == [2, 1]
    assert sent.priority == -3
    assert response.json()["usage"] == {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    assert response.json()["choices"][0]["finish_reason"] == "length"


async def test_max_tokens_defaults_to_what_is_left_of_the_context(
    gateway: RunningGateway, verifier: FakeVerifier
) -> None:
    await gateway.complete([5] * 100)
    assert verifier.requests[0].stop.max_tokens == 156


async def test_a_seed_is_drawn_when_none_is_given(gateway: RunningGateway, verifier: FakeVerifier) -> None:
    for _ in range(2):
        await gateway.chat()
    first, second = (request.sampling.seed for request in verifier.requests)
    assert first != second
    assert max(first, second) < 2**53


@pytest.mark.parametrize("stop", ["END", ["nowhere", " END of"], ["d, the"], ["👩‍👧"]])
@pytest.mark.parametrize("tokens_per_step", [1, 3, 50])
async def test_stop_strings_end_the_text_and_never_leak(
    gateway: RunningGateway, verifier: FakeVerifier, stop: str | list[str], tokens_per_step: int
) -> None:
    verifier.behaviour.tokens_per_step = tokens_per_step
    wanted = ANSWER
    for text in [stop] if isinstance(stop, str) else stop:
        wanted = wanted.partition(text)[0]
    whole = (await gateway.chat(stop=stop)).json()
    assert whole["choices"][0]["message"]["content"] == wanted
    assert whole["choices"][0]["finish_reason"] == "stop"
    streamed = await gateway.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], stop=stop, stream=True
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in streamed]) == wanted


async def test_a_client_that_leaves_a_silent_stream_cancels_the_verifier_at_once(
    gateway: RunningGateway, verifier: FakeVerifier
) -> None:
    verifier.behaviour.hang_after = 4
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if "Hello" in line:
                break
    await asyncio.wait_for(verifier.cancelled.wait(), 1.0)
    await until(lambda: _metric(gateway, 'specgrove:request_success_total{finished_reason="abort"}', 1.0))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_cancels_the_verifier_at_once(
    gateway: RunningGateway, verifier: FakeVerifier, stream: bool
) -> None:
    verifier.behaviour.hang_after = 0
    with pytest.raises(httpx.ReadTimeout):
        await gateway.http.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", "stream": stream}, timeout=0.2)
    await asyncio.wait_for(verifier.cancelled.wait(), 1.0)


async def test_an_idle_stream_carries_heartbeats(gateway: RunningGateway, verifier: FakeVerifier) -> None:
    verifier.behaviour.hang_after = 0
    seen: list[str] = []
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            seen.append(line)
            if sum(text.startswith(":") for text in seen) == 2:
                break
    assert response.status_code == 200


async def test_an_error_after_the_first_byte_becomes_an_event_that_ends_the_stream(
    folder: Path, verifier: FakeVerifier
) -> None:
    verifier.behaviour.die_after = 4
    async with running_gateway(folder, [verifier], max_attempts=1) as gateway:
        response = await gateway.chat(stream=True)
        events = response.text.strip().split("\n\n")
        assert response.status_code == 200
        assert json.loads(events[-1].removeprefix("data: "))["error"]["type"] == "service_unavailable_error"
        with pytest.raises(openai.APIError, match="died"):
            stream = await gateway.openai.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            [chunk async for chunk in stream]


async def test_over_the_bounds_of_admission_the_answer_is_429_with_retry_after(
    folder: Path, verifier: FakeVerifier
) -> None:
    verifier.behaviour.hang_after = 0
    async with running_gateway(folder, [verifier], max_running=1, max_waiting=1, max_wait_s=3.0) as gateway:
        running = asyncio.create_task(gateway.chat())
        await until(lambda: _metric(gateway, "specgrove:num_requests_running", 1.0))
        waiting = asyncio.create_task(gateway.chat())
        await until(lambda: _metric(gateway, "specgrove:num_requests_waiting", 1.0))
        for refused in (await gateway.chat(stream=True), await waiting):
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        verifier.behaviour.hang_after = None
        assert (await gateway.chat()).status_code == 200


async def test_clients_that_send_their_bodies_slowly_do_not_shut_others_out(
    folder: Path, verifier: FakeVerifier
) -> None:
    async with running_gateway(folder, [verifier], max_running=1, max_waiting=0) as gateway:
        slow = [await asyncio.open_connection("127.0.0.1", gateway.ports.http) for _ in range(5)]
        for _, writer in slow:
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b'content-length: 1000\r\n\r\n{"prompt"'
            )
            await writer.drain()
        await asyncio.sleep(0.1)
        assert (await gateway.chat()).status_code == 200
        for _, writer in slow:
            writer.close()
        await until(lambda: _metric(gateway, 'specgrove:request_errors_total{status="CANCELLED"}', 5.0))
        assert 'specgrove:request_errors_total{status="INTERNAL"}' not in await gateway.metrics()


async def test_a_long_body_is_parsed_off_the_loop(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def recording(body: bytes) -> dict[str, Any]:
        threads.append(threading.current_thread() is threading.main_thread())
        return json_object(body)

    monkeypatch.setattr(endpoints, "json_object", recording)
    assert (await gateway.chat()).status_code == 200
    assert (await gateway.chat("oak " * 10_000)).status_code == 400
    assert threads == [True, False]


async def test_metrics_count_tokens_latencies_and_finish_reasons(gateway: RunningGateway) -> None:
    await gateway.chat()
    await gateway.chat(max_tokens=3, stream=True)
    await gateway.chat(temperature=-1)
    samples = await gateway.metrics()
    assert samples["specgrove:time_to_first_token_seconds_count"] == 2
    assert samples["specgrove:e2e_request_latency_seconds_count"] == 2
    assert samples["specgrove:inter_token_latency_seconds_count"] > 5
    assert samples['specgrove:request_success_total{finished_reason="stop"}'] == 1
    assert samples['specgrove:request_success_total{finished_reason="length"}'] == 1
    assert samples['specgrove:request_errors_total{status="INVALID_ARGUMENT"}'] == 1
    assert samples["specgrove:generation_tokens_total"] > 10
    assert samples["specgrove:prompt_tokens_total"] > 10


async def _metric(gateway: RunningGateway, name: str, value: float) -> bool:
    return (await gateway.metrics()).get(name) == value
