"""The client package, on threads and on a loop: answers, streams, errors, deadlines, retries, cancelling, README."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import specgrove.client
from specgrove.client import (
    AsyncClient,
    Client,
    FinishReason,
    Message,
    Rule,
    SpeculationOptions,
)
from specgrove.errors import ContextTooLong, InvalidInput, ModelNotFound, Overloaded, PeerUnavailable, SpecgroveError
from specgrove.proto.v1 import generation_pb2
from specgrove.text import Tokenizer
from specgrove_local.ports import PortPicker
from support.fake_verifier import FakeVerifier
from support.gateway import MODEL, RunningGateway, running_gateway
from support.tiny_tokenizer import write_tiny_tokenizer
from support.waiting import until

ANSWER = "Hello 👩‍👩‍👧 world, the END of 🌳 text."
MESSAGES: list[Message] = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture
async def verifier(tokenizer: Tokenizer) -> AsyncIterator[FakeVerifier]:
    fake = FakeVerifier(tokenizer, lambda prompt, seed: [*tokenizer.encode(ANSWER), 2])
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def gateway(folder: Path, verifier: FakeVerifier) -> AsyncIterator[RunningGateway]:
    async with running_gateway(folder, [verifier], failover_wait_s=0.1) as running:
        yield running


class OnThreads:
    """`Client` with the face of `AsyncClient`: each call in a thread of its own."""

    def __init__(self, address: str, **settings: Any) -> None:
        self.client = Client(address, **settings)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.client, name)
        return lambda *arguments, **options: asyncio.to_thread(method, *arguments, **options)

    async def collect(self, *arguments: Any, **options: Any) -> list[Any]:
        return await asyncio.to_thread(lambda: list(self.client.stream(*arguments, **options)))


class OnLoop(AsyncClient):
    async def collect(self, *arguments: Any, **options: Any) -> list[Any]:
        return [chunk async for chunk in self.stream(*arguments, **options)]


@pytest.fixture(params=[OnThreads, OnLoop], ids=["threads", "loop"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    opened: list[Any] = []

    def connect(port: int, **settings: Any) -> Any:
        opened.append(request.param(f"127.0.0.1:{port}", **settings))
        return opened[-1]

    yield connect
    for client in opened:
        await client.close()


@pytest.fixture
def client(connect: Callable[..., Any], gateway: RunningGateway) -> Any:
    return connect(gateway.ports.grpc)


async def test_a_whole_answer_has_text_ids_usage_figures_and_seed(client: Any, tokenizer: Tokenizer) -> None:
    answer = await client.generate("Hello", seed=2**64 - 1)
    assert answer.text == ANSWER
    assert list(answer.token_ids) == [*tokenizer.encode(ANSWER), 2]
    assert answer.finish_reason is FinishReason.STOP
    assert answer.usage.completion_tokens == len(answer.token_ids)
    assert answer.usage.prompt_tokens == len(tokenizer.encode("Hello"))
    assert (answer.stats.num_steps, answer.stats.accepted_per_pos) == (10, [6, 3])
    assert answer.seed == 2**64 - 1
    assert answer.request_id
    assert answer.session_id


async def test_a_stream_joins_to_the_whole_and_its_last_chunk_alone_ends_it(client: Any) -> None:
    chunks = await client.collect(messages=MESSAGES, seed=5)
    whole = await client.generate(messages=MESSAGES, seed=5)
    assert len(chunks) > 3
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(token_id for chunk in chunks for token_id in chunk.token_ids) == whole.token_ids
    assert all(chunk.finish_reason is chunk.stats is chunk.usage is chunk.seed is None for chunk in chunks[:-1])
    last = chunks[-1]
    assert (last.finish_reason, last.usage, last.stats, last.seed) == (
        whole.finish_reason,
        whole.usage,
        whole.stats,
        5,
    )


async def test_every_option_reaches_the_verifier(client: Any, verifier: FakeVerifier) -> None:
    await client.generate(
        token_ids=[5, 6, 7],
        model=MODEL,
        session_id="s-1",
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        min_p=0.25,
        seed=0,
        max_tokens=9,
        min_tokens=2,
        ignore_eos=True,
        stop="zzz",
        stop_token_ids=[11],
        priority=-3,
        speculation=SpeculationOptions(max_nodes=4, max_depth=2, rule=Rule.MSS, expansion=(2, 1)),
    )
    (sent,) = verifier.requests
    assert (list(sent.prompt_token_ids), sent.session_id, sent.priority) == ([5, 6, 7], "s-1", -3)
    assert (sent.sampling.temperature, sent.sampling.top_p, sent.sampling.top_k) == (0, 0.5, 3)
    assert (sent.sampling.min_p, sent.sampling.seed) == (0.25, 0)
    assert (sent.stop.max_tokens, sent.stop.min_tokens, sent.stop.ignore_eos) == (9, 2, True)
    assert (list(sent.stop.stop_strings), list(sent.stop.stop_token_ids)) == (["zzz"], [11])
    assert (sent.speculation.max_nodes, sent.speculation.max_depth) == (4, 2)
    assert sent.speculation.rule == generation_pb2.VERIFICATION_RULE_MSS
    assert list(sent.speculation.expansion) == [2, 1]
    assert not sent.speculation.disabled
    await client.generate("Hello", speculation=False, stop=["a", "END"], temperature=None)
    assert verifier.requests[1].speculation.disabled
    assert verifier.requests[1].sampling.temperature == 1.0


async def test_models_version_and_tokens(client: Any, tokenizer: Tokenizer) -> None:
    (model,) = await client.models()
    assert (model.model_id, model.max_context_len, model.vocab_size) == (MODEL, 256, tokenizer.vocab_size)
    assert await client.version()
    tokens = await client.tokenize("Hello world")
    assert list(tokens.token_ids) == tokenizer.encode("Hello world")
    assert tokens.token_strs[0] == tokenizer.token_str(tokens.token_ids[0])
    assert await client.detokenize(tokens.token_ids) == "Hello world"
    opened = await client.tokenize(messages=MESSAGES)
    closed = await client.tokenize(messages=MESSAGES, add_generation_prompt=False)
    assert opened.token_ids[: len(closed.token_ids)] == closed.token_ids
    assert len(opened.token_ids) > len(closed.token_ids)


ERRORS: list[tuple[dict[str, Any], type[SpecgroveError], str]] = [
    ({"prompt": "Hi", "temperature": -1.0}, InvalidInput, "temperature"),
    ({"prompt": "Hi", "model": "gpt-4o"}, ModelNotFound, "model"),
    ({"prompt": "oak " * 300}, ContextTooLong, "prompt"),
    ({"messages": [{"role": "alien", "content": "x"}]}, InvalidInput, "chat"),
    # Refused before anything is sent:
    ({}, InvalidInput, "prompt"),
    ({"prompt": "Hi", "token_ids": [5]}, InvalidInput, "prompt"),
    ({"prompt": 5}, InvalidInput, "prompt"),
    ({"prompt": "\ud800"}, InvalidInput, "prompt"),
    ({"token_ids": [-1]}, InvalidInput, "token_ids"),
    ({"token_ids": [2**40]}, InvalidInput, "token_ids"),
    ({"messages": ["Hi"]}, InvalidInput, "messages.0"),
    ({"messages": [{"role": "user", "text": "Hi"}]}, InvalidInput, "messages.0"),
    ({"prompt": "Hi", "top_k": -1}, InvalidInput, "top_k"),
    ({"prompt": "Hi", "seed": 2**64}, InvalidInput, "seed"),
    ({"prompt": "Hi", "stop": [5]}, InvalidInput, "stop"),
    ({"prompt": "Hi", "no_such_option": 5}, InvalidInput, "no_such_option"),
    ({"prompt": "Hi", "chat": "Hi"}, InvalidInput, "chat"),
]


@pytest.mark.parametrize(("arguments", "kind", "field"), ERRORS, ids=[str(n) for n in range(len(ERRORS))])
async def test_errors_are_typed_and_name_the_field(
    client: Any, arguments: dict[str, Any], kind: type[SpecgroveError], field: str
) -> None:
    for ask in (client.generate, client.collect):
        with pytest.raises(SpecgroveError) as raised:
            await ask(**arguments)
        assert type(raised.value) is kind
        assert cast(InvalidInput, raised.value).field == field


async def test_a_full_gateway_is_overloaded_and_says_when_to_come_back(
    connect: Callable[..., Any], folder: Path, verifier: FakeVerifier
) -> None:
    verifier.behaviour.hang_after = 0
    async with running_gateway(folder, [verifier], max_running=1, max_wait_s=0.4) as gateway:
        client = connect(gateway.ports.grpc, retry_s=30.0)
        running = asyncio.create_task(client.generate("Hi", timeout_s=3.0))
        await until(lambda: verifier.requests)
        with pytest.raises(Overloaded) as raised:
            await client.generate("Hi")
        assert raised.value.retry_after_s == 0.4
        with pytest.raises(PeerUnavailable):
            await running


async def test_a_deadline_ends_the_answer_and_cancels_the_verifier(client: Any, verifier: FakeVerifier) -> None:
    verifier.behaviour.hang_after = 2
    began = time.monotonic()
    with pytest.raises(PeerUnavailable):
        await client.generate("Hi", timeout_s=0.3)
    assert time.monotonic() - began < 2.0
    await asyncio.wait_for(verifier.cancelled.wait(), 2.0)


async def test_a_gateway_that_comes_up_late_is_waited_for_within_the_budget(
    connect: Callable[..., Any], folder: Path, verifier: FakeVerifier
) -> None:
    port = PortPicker().any_free()
    patient, hasty = connect(port, retry_s=20.0), connect(port, retry_s=0.2)
    began = time.monotonic()
    with pytest.raises(PeerUnavailable):
        await hasty.generate("Hi")
    with pytest.raises(PeerUnavailable):
        await hasty.models()
    assert time.monotonic() - began < 3.0
    asking = [asyncio.create_task(patient.generate("Hi")), asyncio.create_task(patient.models())]
    await asyncio.sleep(0.3)
    async with running_gateway(folder, [verifier], grpc_port=port, failover_wait_s=5.0):
        answer, models = await asyncio.wait_for(asyncio.gather(*asking), 20)
    assert answer.text == ANSWER
    assert models[0].model_id == MODEL


async def test_unavailable_is_tried_again_before_the_first_chunk_and_never_after(
    connect: Callable[..., Any], gateway: RunningGateway, verifier: FakeVerifier
) -> None:
    client = connect(gateway.ports.grpc, retry_s=10.0)
    verifier.behaviour.refuse_with = PeerUnavailable("not yet")
    asking = asyncio.create_task(client.generate("Hi"))
    await until(lambda: len(verifier.requests) > 5)  # more than the gateway's own attempts
    verifier.behaviour.refuse_with = None
    assert (await asking).text == ANSWER
    verifier.requests.clear()
    verifier.behaviour.die_after = 4
    with pytest.raises(PeerUnavailable, match=r"died|verifier"):
        await client.generate("Hi")
    first_attempts = [request for request in verifier.requests if not request.committed_token_ids]
    assert len(first_attempts) == 1


async def test_leaving_a_blocking_stream_cancels_the_verifier(gateway: RunningGateway, verifier: FakeVerifier) -> None:
    verifier.behaviour.hang_after = 4

    def leave_the_block(client: Client) -> None:
        with client.stream("Hi") as stream:
            assert next(stream).text.startswith("Hello")
        assert list(stream) == []

    def drop(client: Client) -> None:
        for _ in client.stream("Hi"):
            break
        gc.collect()

    def close_from_another_thread(client: Client) -> None:
        stream = client.stream("Hi")
        next(stream)
        threading.Timer(0.1, stream.close).start()
        assert len(list(stream)) <= 1, "the iteration ends instead of raising"
        with pytest.raises(PeerUnavailable, match="finish reason"):
            stream.answer()

    with Client(f"127.0.0.1:{gateway.ports.grpc}") as client:
        for number, leave in enumerate((leave_the_block, drop, close_from_another_thread), 1):
            await asyncio.to_thread(leave, client)
            await until(lambda number=number: verifier.num_cancelled == number, timeout_s=2.0)


async def test_leaving_an_asynchronous_stream_cancels_the_verifier(
    gateway: RunningGateway, verifier: FakeVerifier
) -> None:
    verifier.behaviour.hang_after = 4

    async def leave_the_block(client: AsyncClient) -> None:
        async with client.stream("Hi") as stream:
            assert (await anext(stream)).text.startswith("Hello")
        assert [chunk async for chunk in stream] == []

    async def drop(client: AsyncClient) -> None:
        async for _ in client.stream("Hi"):
            break
        gc.collect()

    async def cancel_the_task(client: AsyncClient) -> None:
        asking = asyncio.create_task(client.generate("Hi"))
        await asyncio.sleep(0.2)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    async def close_from_another_task(client: AsyncClient) -> None:
        stream = client.stream("Hi")
        await anext(stream)
        asyncio.get_running_loop().call_later(0.1, lambda: asyncio.ensure_future(stream.aclose()))
        assert len([chunk async for chunk in stream]) <= 1

    async with AsyncClient(f"127.0.0.1:{gateway.ports.grpc}") as client:
        leaves = (leave_the_block, drop, cancel_the_task, close_from_another_task)
        for number, leave in enumerate(leaves, 1):
            await leave(client)
            await until(lambda number=number: verifier.num_cancelled == number, timeout_s=2.0)


async def test_many_threads_share_one_client(gateway: RunningGateway) -> None:
    with Client(f"127.0.0.1:{gateway.ports.grpc}") as client:
        answers = await asyncio.gather(*(asyncio.to_thread(client.generate, "Hi", seed=n) for n in range(12)))
    assert {answer.text for answer in answers} == {ANSWER}
    assert [answer.seed for answer in answers] == list(range(12))


README = (Path(specgrove.client.__file__).parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=[str(n) for n in range(len(EXAMPLES))])
async def test_the_examples_of_the_readme_run(
    gateway: RunningGateway, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "127.0.0.1:8001" in code
    code = code.replace("127.0.0.1:8001", f"127.0.0.1:{gateway.ports.grpc}")
    await asyncio.to_thread(exec, compile(code, "README.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.strip()
