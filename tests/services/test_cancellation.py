"""A client that leaves, by whatever face and in whatever phase, frees everything on its way down; others go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specgrove.client import AsyncClient
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove_verifier.engine import Engine
from support.gateway import MODEL, RunningGateway, running_gateway
from support.tiny_models import write_tiny_model
from support.tiny_verifier import ScriptedDrafter, TinyVerifier, drafting, running_verifier
from support.waiting import until

LONG_PROMPT = [5 + n % 80 for n in range(200)]
STEP_S = 0.03
# What the way down may add to a step: three sockets and as many tasks, on a machine that is busy with other tests.
RELEASE_S = 1.0
FACES = ["whole", "stream", "grpc"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target"), seed=1, max_context_len=1024)


@pytest.fixture(scope="module")
def target(folder: Path) -> LoadedModel:
    return load_model(folder, "float32")


@dataclass(frozen=True, slots=True)
class System:
    """A gateway before a slow verifier with a silent drafter."""

    gateway: RunningGateway
    verifier: TinyVerifier
    drafter: ScriptedDrafter
    client: AsyncClient

    @property
    def engine(self) -> Engine:
        return self.verifier.engine

    @property
    def num_tokens(self) -> float:
        return self.verifier.sample("specgrove:generation_tokens_total")

    async def metric(self, name: str) -> float:
        return (await self.gateway.metrics())[f"specgrove:{name}"]

    def ask(self, face: str, prompt: list[int], max_tokens: int = 400) -> asyncio.Task[Any]:
        """A request in progress; cancelling the task is what a client does that leaves."""
        fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
        if face == "grpc":
            return asyncio.create_task(self.client.generate(token_ids=prompt, **fields))
        body = {"model": MODEL, "prompt": prompt, "stream": face == "stream", **fields}
        return asyncio.create_task(self._post(body))

    async def _post(self, body: dict[str, Any]) -> None:
        async with self.gateway.http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            async for _ in response.aiter_bytes():
                pass

    async def assert_all_is_free(self) -> None:
        """Nobody runs or waits at any hop, no KV block is held, no mirror is left."""
        await self.verifier.assert_empty()
        await until(lambda: not self.drafter.sessions)
        await until(self._is_gateway_idle)

    async def _is_gateway_idle(self) -> bool:
        samples = await self.gateway.metrics()
        return samples["specgrove:num_requests_running"] == samples["specgrove:num_requests_waiting"] == 0


@asynccontextmanager
async def running_system(
    folder: Path,
    target: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    *,
    max_running: int = 8,
    **verifier_settings: Any,
) -> AsyncIterator[System]:
    async with (
        running_verifier(target, max_draft_wait_ms=1.0, **verifier_settings) as verifier,
        running_gateway(folder, [verifier], max_running=max_running) as gateway,
        AsyncClient(f"127.0.0.1:{gateway.ports.grpc}") as client,
        drafting(verifier, lambda session: None) as drafter,
    ):
        await verifier.until(lambda: verifier.engine.num_drafters == 1)
        real_run = verifier.engine._forward.run

        def slow_run(batch: Any) -> Any:
            time.sleep(STEP_S)
            return real_run(batch)

        monkeypatch.setattr(verifier.engine._forward, "run", slow_run)
        yield System(gateway, verifier, drafter, client)


async def leave(asking: asyncio.Task[Any]) -> None:
    assert not asking.done(), asking
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def within(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    began = time.monotonic()
    await until(condition)
    print(f"freed after {time.monotonic() - began:.3f} s")
    assert time.monotonic() - began < RELEASE_S


@pytest.mark.parametrize("face", FACES)
async def test_leaving_while_tokens_come(
    folder: Path, target: LoadedModel, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    async with running_system(folder, target, monkeypatch) as system:
        asking = system.ask(face, [5, 6, 7])
        await until(lambda: system.num_tokens >= 3 and system.drafter.sessions)
        await leave(asking)
        await within(lambda: system.engine.num_running == 0)
        assert system.num_tokens < 100
        await system.assert_all_is_free()
        assert system.drafter.received[-1].close.reason == "cancelled"


@pytest.mark.parametrize("face", FACES)
async def test_leaving_while_the_prompt_is_read(
    folder: Path, target: LoadedModel, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    async with running_system(folder, target, monkeypatch, max_step_rows=10) as system:
        asking = system.ask(face, LONG_PROMPT)
        await until(lambda: system.verifier.num_forwards >= 2)
        await leave(asking)
        await within(lambda: system.engine.num_running == 0)
        assert system.num_tokens == 0
        assert system.verifier.num_forwards < len(LONG_PROMPT) / 10, "the prompt was not read to its end"
        await system.assert_all_is_free()
        assert system.drafter.received == []


@pytest.mark.parametrize("face", FACES)
async def test_leaving_while_queued_at_the_verifier(
    folder: Path, target: LoadedModel, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    async with running_system(folder, target, monkeypatch, max_sessions=1) as system:
        running = system.ask("whole", [8, 9], 40)
        await until(lambda: system.engine.num_running == 1)
        asking = system.ask(face, [5, 6, 7])
        await until(lambda: system.engine.num_waiting == 1)
        await leave(asking)
        await within(lambda: system.engine.num_waiting == 0)
        assert system.engine.num_running == 1, "the other one is not disturbed"
        await running
        assert system.num_tokens == 40
        await system.assert_all_is_free()


@pytest.mark.parametrize("face", FACES)
async def test_leaving_while_queued_at_the_gateway(
    folder: Path, target: LoadedModel, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    async def is_waiting(count: int) -> bool:
        return await system.metric("num_requests_waiting") == count

    async with running_system(folder, target, monkeypatch, max_running=1) as system:
        running = system.ask("whole", [8, 9], 60)
        await until(lambda: system.engine.num_running == 1)
        asking = system.ask(face, [5, 6, 7])
        await until(lambda: is_waiting(1))
        await leave(asking)
        await within(lambda: is_waiting(0))
        await running
        assert system.num_tokens == 60, "the verifier never heard of the one that left"
        await system.assert_all_is_free()


@pytest.mark.parametrize("face", FACES)
async def test_leaving_in_a_batch_leaves_the_others_alone(
    folder: Path, target: LoadedModel, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    async with running_system(folder, target, monkeypatch) as system:
        kept = asyncio.create_task(
            system.client.generate(token_ids=[8, 9], max_tokens=40, temperature=0.0, ignore_eos=True)
        )
        doomed = [system.ask(face, [5, 6, number]) for number in range(3)]
        await until(lambda: system.num_tokens >= 12 and system.engine.num_running == 4)
        await asyncio.gather(*map(leave, doomed))
        await within(lambda: system.engine.num_running <= 1)
        answer = await kept
        alone = await system.client.generate(token_ids=[8, 9], max_tokens=40, temperature=0.0, ignore_eos=True)
        assert answer.token_ids == alone.token_ids
        await system.assert_all_is_free()


async def test_a_client_that_leaves_while_another_waits_hands_its_slot_on_at_once(
    folder: Path, target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_system(folder, target, monkeypatch, max_running=1) as system:
        first = system.ask("whole", [5, 6, 7])
        await until(lambda: system.engine.num_running == 1)
        second = asyncio.create_task(system.client.generate(token_ids=[8, 9], max_tokens=4, temperature=0.0))
        await asyncio.sleep(0.1)
        left_at = time.monotonic()
        await leave(first)
        assert len((await second).token_ids) <= 4
        assert time.monotonic() - left_at < RELEASE_S + 6 * STEP_S
        await system.assert_all_is_free()
