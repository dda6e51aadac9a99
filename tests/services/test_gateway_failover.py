"""Verifiers die, refuse, hang and lie about epochs; the client gets the same tokens or a clear error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from specgrove.errors import Overloaded, PeerUnavailable, StaleEpoch
from specgrove.session import Heartbeat, Pod, PodRegistry, SessionStore, connect
from specgrove.text import Tokenizer
from support.fake_verifier import FakeVerifier
from support.gateway import RunningGateway, running_gateway
from support.redis_server import RedisServer
from support.tiny_tokenizer import write_tiny_tokenizer
from support.waiting import until

ANSWER = "Hello world, this is a small text about oaks 🌳 and beeches in a specgrove."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Callable[[str], Any]]:
    """Starts fake verifiers that all write the same tokens, as real ones do with the same seed."""
    tokenizer = Tokenizer.load(folder)
    ids = [*tokenizer.encode(ANSWER), 2]
    async with AsyncExitStack() as stack:

        async def start(verifier_id: str) -> FakeVerifier:
            def script(prompt: Sequence[int], seed: int) -> Sequence[int]:
                return ids

            fake = FakeVerifier(tokenizer, script, verifier_id=verifier_id)
            await fake.start()
            stack.push_async_callback(fake.stop)
            return fake

        yield start


async def text_of(gateway: RunningGateway, **fields: Any) -> str:
    response = await gateway.chat(**fields)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


async def test_a_generation_resumes_on_another_verifier_with_the_same_tokens(folder: Path, start: Any) -> None:
    dying, healthy = await start("one"), await start("two")
    dying.behaviour.die_after = 6
    async with running_gateway(folder, [dying, healthy]) as gateway:
        for _ in range(6):  # whichever comes first
            response = await gateway.openai.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in response]) == ANSWER
    resumed = [request for request in healthy.requests if request.committed_token_ids]
    assert dying.requests
    assert len(resumed) == len(dying.requests)
    assert len(resumed[0].committed_token_ids) == 6
    assert resumed[0].epoch > dying.requests[0].epoch


async def test_stop_strings_that_straddle_the_failover_are_found(folder: Path, start: Any) -> None:
    dying, healthy = await start("one"), await start("two")
    for tokens in range(2, 20, 3):
        dying.behaviour.die_after = tokens
        async with running_gateway(folder, [dying, healthy], heartbeat_s=5) as gateway:
            assert await text_of(gateway, stop="oaks 🌳 and") == ANSWER.partition("oaks")[0]


async def test_refusals_before_the_first_token_are_retried_elsewhere(folder: Path, start: Any) -> None:
    full, healthy = await start("one"), await start("two")
    full.behaviour.refuse_with = Overloaded("full", retry_after_s=3)
    async with running_gateway(folder, [full, healthy]) as gateway:
        for _ in range(5):
            assert await text_of(gateway) == ANSWER
        healthy.behaviour.refuse_with = Overloaded("full too")
        response = await gateway.chat()
        assert response.status_code == 429


async def test_when_no_verifier_is_left_the_error_is_a_clear_503(folder: Path, start: Any) -> None:
    verifier = await start("one")
    async with running_gateway(folder, [verifier], failover_wait_s=0.3) as gateway:
        assert await text_of(gateway) == ANSWER
        await verifier.stop()
        response = await gateway.chat()
        assert response.status_code == 503
        assert "verifier" in response.json()["error"]["message"]
        assert (await gateway.http.get("/health")).status_code == 200


async def test_a_verifier_that_comes_back_is_used_again_within_its_waiting_time(folder: Path, start: Any) -> None:
    verifier = await start("one")
    port = int(verifier.address.rpartition(":")[2])
    async with running_gateway(folder, [verifier], failover_wait_s=8) as gateway:
        await verifier.stop()
        asking = asyncio.create_task(text_of(gateway))
        await asyncio.sleep(0.5)
        verifier.incarnation = "2"
        await verifier.start(port)
        assert await asking == ANSWER


async def test_a_silent_verifier_is_given_up_and_the_generation_resumes(
    folder: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgrove_gateway.verifier_pool._DESCRIBE_TIMEOUT_S", 0.1)
    silent, healthy = await start("one"), await start("two")
    healthy.behaviour.num_running = 4  # the other one is chosen first
    silent.behaviour.hang_after = 4
    async with running_gateway(folder, [silent, healthy]) as gateway:
        asking = asyncio.create_task(text_of(gateway))
        await until(lambda: silent.requests)
        await asyncio.sleep(0.2)
        silent.behaviour.is_mute = True
        assert await asyncio.wait_for(asking, 12) == ANSWER
    assert silent.num_cancelled == 1


async def test_steps_of_an_older_epoch_are_dropped(folder: Path, start: Any) -> None:
    stale, healthy = await start("one"), await start("two")
    stale.behaviour.epoch_shift = -1
    async with running_gateway(folder, [stale, healthy]) as gateway:
        for _ in range(4):
            assert await text_of(gateway) == ANSWER
    assert all(not request.committed_token_ids for request in healthy.requests)


async def test_a_stale_epoch_at_the_start_is_retried_with_a_newer_one(folder: Path, start: Any) -> None:
    verifier = await start("one")
    verifier.behaviour.refuse_with = StaleEpoch("newer owner")
    async with running_gateway(folder, [verifier]) as gateway:
        assert (await gateway.chat()).status_code == 409
        epochs = [request.epoch for request in verifier.requests]
        assert len(epochs) == 4
        assert sorted(set(epochs)) == epochs


async def test_attempts_are_bounded(folder: Path, start: Any) -> None:
    verifier = await start("one")
    verifier.behaviour.refuse_with = PeerUnavailable("not today")
    async with running_gateway(folder, [verifier], max_attempts=3) as gateway:
        response = await gateway.chat()
        assert response.status_code == 503
        assert "not today" in response.json()["error"]["message"]
        assert len(verifier.requests) == 3


async def test_a_session_stays_with_its_verifier_and_its_progress_is_recorded(
    folder: Path, start: Any, redis_url: str
) -> None:
    verifiers = [await start("one"), await start("two")]
    async with registered(redis_url, verifiers), running_gateway(folder, verifiers, redis_url=redis_url) as gateway:
        await text_of(gateway, session_id="sticky-1")
        for _ in range(5):
            await text_of(gateway, session_id="sticky-1")
        redis = connect(redis_url)
        store = SessionStore(redis)

        async def is_recorded() -> bool:
            placement = await store.lookup("sticky-1")
            return placement is not None and placement.committed_len > 0

        await until(is_recorded)
        await redis.aclose()
    assert sorted(len(verifier.requests) for verifier in verifiers) == [0, 6]
    epochs = [request.epoch for verifier in verifiers for request in verifier.requests]
    assert sorted(set(epochs)) == epochs


async def test_running_and_new_generations_go_on_while_redis_is_away(
    folder: Path, start: Any, redis_server: RedisServer
) -> None:
    verifier = await start("one")
    verifier.behaviour.step_s = 0.03
    async with (
        registered(redis_server.url, [verifier]),
        running_gateway(folder, [verifier], redis_url=redis_server.url) as gateway,
    ):
        running = asyncio.create_task(text_of(gateway, session_id="s"))
        await until(lambda: verifier.requests)
        redis_server.stop()
        assert await running == ANSWER
        assert await text_of(gateway, session_id="s") == ANSWER
        redis_server.start()
        assert await text_of(gateway, session_id="s") == ANSWER
    epochs = [request.epoch for request in verifier.requests]
    assert sorted(set(epochs)) == epochs


@asynccontextmanager
async def registered(redis_url: str, verifiers: Sequence[FakeVerifier]) -> AsyncIterator[None]:
    """The verifiers' heartbeats in the registry, under ids of their own."""
    redis = connect(redis_url)
    registry = PodRegistry(redis, ttl_s=3)
    async with AsyncExitStack() as stack:
        for verifier in verifiers:
            pod = Pod("verifier", verifier.verifier_id, verifier.incarnation, verifier.address)
            await stack.enter_async_context(Heartbeat(registry, pod))
        yield
    await redis.aclose()


async def test_health_is_the_process_and_ready_is_a_healthy_verifier(folder: Path, start: Any) -> None:
    verifier = await start("one")
    await verifier.stop()
    async with running_gateway(folder, [verifier], wait_ready=False, failover_wait_s=0.1) as gateway:
        assert (await gateway.http.get("/health")).status_code == 200
        assert (await gateway.http.get("/ready")).status_code == 503
        assert (await gateway.chat()).status_code == 503


async def test_a_verifier_with_another_vocabulary_is_not_used(folder: Path, start: Any) -> None:
    verifier = await start("one")
    verifier.vocab_hash = "other"
    async with running_gateway(folder, [verifier], wait_ready=False, failover_wait_s=0.1) as gateway:
        await asyncio.sleep(0.3)
        assert (await gateway.http.get("/ready")).status_code == 503
        assert (await gateway.chat()).status_code == 503
        assert verifier.requests == []
