"""`n`: each choice is what it would be alone under its own seed; they share a prompt, a verifier, and their end."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specgrove.errors import PeerUnavailable
from specgrove.proto.v1 import gateway_pb2, gateway_pb2_grpc, verifier_pb2
from specgrove.rpc import open_channel
from specgrove.sampling.seeds import choice_seed
from specgrove.text import Tokenizer
from support.fake_verifier import FakeVerifier
from support.gateway import MODEL, RunningGateway, running_gateway
from support.tiny_tokenizer import write_tiny_tokenizer
from support.waiting import until

SEED = 11
SEEDS = [choice_seed(SEED, index) for index in range(4)]


class FailingThird(FakeVerifier):
    """Refuses the third choice."""

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[verifier_pb2.VerifierGenerateResponse]:
        if request.sampling.seed == SEEDS[2]:
            raise PeerUnavailable("the third choice failed")
        async for message in FakeVerifier.Generate(self, request, context):
            yield message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def _text(seed: int) -> str:
    return f"Seed {seed}" + " tree" * (seed % 5)


@pytest.fixture
async def verifiers(tokenizer: Tokenizer) -> AsyncIterator[list[FakeVerifier]]:
    def script(prompt: Sequence[int], seed: int) -> Sequence[int]:
        return [*tokenizer.encode(_text(seed)), 2]

    fakes = [FakeVerifier(tokenizer, script, verifier_id=f"{n}") for n in range(2)]
    for fake in fakes:
        await fake.start()
    yield fakes
    for fake in fakes:
        await fake.stop()


@pytest.fixture
async def gateway(folder: Path, verifiers: list[FakeVerifier]) -> AsyncIterator[RunningGateway]:
    async with running_gateway(folder, verifiers) as running:
        yield running


def test_the_first_seed_is_the_request_s_and_the_others_survive_a_double() -> None:
    assert SEEDS[0] == SEED
    assert len(set(SEEDS)) == 4
    assert all(float(seed) == seed < 2**53 for seed in SEEDS)
    assert choice_seed(SEED, 3) == SEEDS[3] != choice_seed(SEED + 1, 3)


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_each_choice_is_that_of_its_seed_alone(gateway: RunningGateway, endpoint: str) -> None:
    send = getattr(gateway, endpoint)
    answer = (await send(n=4, seed=SEED)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["seed"] for choice in answer["choices"]] == SEEDS
    num_tokens = 0
    for choice in answer["choices"]:
        alone = (await send(seed=choice["seed"])).json()
        [its] = alone["choices"]
        assert {**its, "index": choice["index"], "seed": choice["seed"]} == choice
        num_tokens += alone["usage"]["completion_tokens"]
        assert alone["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == num_tokens
    figures = answer["metrics"]["speculative_decoding"]
    assert (figures["num_committed_tokens"], figures["num_spec_steps"]) == (num_tokens, 40)
    assert answer["seed"] == SEED


async def test_a_stream_interleaves_choices_and_ends_each_once(gateway: RunningGateway) -> None:
    stream = await gateway.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        n=4,
        seed=SEED,
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts: dict[int, str] = defaultdict(str)
    ends: Counter[int] = Counter()
    num_entries = 0
    chunks = [chunk async for chunk in stream]
    for chunk in chunks[:-1]:
        [choice] = chunk.choices
        assert not ends[choice.index]
        if choice.index not in texts:
            assert choice.delta.role == "assistant"
        texts[choice.index] += choice.delta.content or ""
        ends[choice.index] += choice.finish_reason is not None
        num_entries += len(choice.logprobs.content or ()) if choice.logprobs else 0
    assert texts == {index: _text(seed) for index, seed in enumerate(SEEDS)}
    assert ends == dict.fromkeys(range(4), 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == num_entries


async def test_without_usage_the_last_ending_carries_the_figures(gateway: RunningGateway) -> None:
    stream = await gateway.openai.completions.create(model=MODEL, prompt="Hi", n=3, best_of=3, seed=SEED, stream=True)
    chunks = [chunk async for chunk in stream]
    assert [chunk for chunk in chunks if "metrics" in (chunk.model_extra or {})] == [chunks[-1]]
    assert sum(chunk.choices[0].finish_reason is not None for chunk in chunks) == 3


async def test_the_others_follow_the_first_to_its_verifier_once_the_prompt_is_read(
    gateway: RunningGateway, verifiers: list[FakeVerifier]
) -> None:
    for verifier in verifiers:
        verifier.behaviour.step_s = 0.05
    for _ in range(4):
        answering = asyncio.create_task(gateway.complete(n=4, seed=SEED, session_id="mine"))
        await until(lambda: any(verifier.requests for verifier in verifiers))
        await asyncio.sleep(0.02)
        [first] = [request for verifier in verifiers for request in verifier.requests]
        assert first.sampling.seed == SEED
        assert first.session_id == "mine"
        assert (await answering).status_code == 200
        [requests] = [verifier.requests for verifier in verifiers if verifier.requests]
        assert len(requests) == 4
        assert {request.sampling.seed for request in requests} == set(SEEDS)
        assert len({request.session_id for request in requests}) == 4
        requests.clear()


async def test_echo_scores_the_prompt_once_and_shows_it_with_each_choice(
    gateway: RunningGateway, verifiers: list[FakeVerifier], tokenizer: Tokenizer
) -> None:
    answer = (await gateway.complete("oak tree", n=3, seed=SEED, echo=True, logprobs=1)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["oak tree" + _text(seed) for seed in SEEDS[:3]]
    num_prompt = len(tokenizer.encode("oak tree"))
    num_entries = sum(len(choice["logprobs"]["tokens"]) for choice in answer["choices"])
    assert num_entries == answer["usage"]["completion_tokens"] + 3 * num_prompt
    for choice in answer["choices"]:
        assert choice["logprobs"]["text_offset"][num_prompt] == len("oak tree")
    asked = [request.prompt_logprobs for verifier in verifiers for request in verifier.requests]
    assert sorted(asked) == [False, False, True]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_one_choice_that_fails_ends_all_with_its_error(
    folder: Path, verifiers: list[FakeVerifier], is_stream: bool
) -> None:
    failing = FailingThird(verifiers[0].tokenizer, verifiers[0].script)
    failing.behaviour.step_s = 0.05
    await failing.start()
    async with running_gateway(folder, [failing], max_attempts=1) as gateway:
        answer = await gateway.complete(n=4, seed=SEED, stream=is_stream)
        if is_stream:
            events = [line for line in answer.text.splitlines() if line.startswith("data:")]
            assert [event for event in events if "the third choice failed" in event] == [events[-1]]
        else:
            assert answer.status_code == 503
            assert "the third choice failed" in answer.json()["error"]["message"]
        await until(lambda: failing.num_cancelled == len(failing.requests) > 0)
        assert (await gateway.metrics())["specgrove:num_requests_running"] == 0
    await failing.stop()


async def test_a_client_that_leaves_ends_all(gateway: RunningGateway, verifiers: list[FakeVerifier]) -> None:
    for verifier in verifiers:
        verifier.behaviour.step_s = 0.05
    asking = asyncio.create_task(gateway.complete(n=4, seed=SEED))
    await until(lambda: sum(len(verifier.requests) for verifier in verifiers) == 4)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: sum(verifier.num_cancelled for verifier in verifiers) == 4)
    assert (await gateway.metrics())["specgrove:num_requests_running"] == 0


async def test_slots_for_all_choices_or_none(folder: Path, verifiers: list[FakeVerifier]) -> None:
    for verifier in verifiers:
        verifier.behaviour.step_s = 0.01
    async with running_gateway(folder, verifiers, max_running=4) as gateway:
        for is_stream in (False, True):
            refused = await gateway.complete(n=5, stream=is_stream)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "n"
        answers = await asyncio.gather(*(gateway.complete(n=n, seed=SEED) for n in (3, 4, 1, 3)))
        assert [len(answer.json()["choices"]) for answer in answers] == [3, 4, 1, 3]


async def test_grpc_tells_choices_apart_by_index(gateway: RunningGateway) -> None:
    texts: dict[int, str] = defaultdict(str)
    seeds: dict[int, int] = {}
    async with open_channel(f"127.0.0.1:{gateway.ports.grpc}") as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        async for part in stub.Generate(gateway_pb2.GenerateRequest(prompt="Hi", n=4, seed=SEED), timeout=10):
            assert part.index not in seeds
            texts[part.index] += part.text
            if part.finish_reason:
                seeds[part.index] = part.seed
    assert texts == {index: _text(seed) for index, seed in enumerate(SEEDS)}
    assert seeds == dict(enumerate(SEEDS))
