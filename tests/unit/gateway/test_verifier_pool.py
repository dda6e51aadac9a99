"""The pool knows who is healthy, prefers a session's own verifier, and holds its list when the registry blinks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from specgrove.errors import PeerUnavailable
from specgrove_gateway import verifier_pool
from specgrove_gateway.generation import GenerationRequest, TokenStep
from specgrove_gateway.verifier_pool import VerifierInfo, VerifierPool
from support.waiting import until

INFO = VerifierInfo(
    verifier_id="",
    incarnation="1",
    model="m",
    vocab_hash="hash",
    vocab_size=100,
    max_context_len=50,
    num_running=0,
    num_waiting=0,
    max_sessions=4,
)


@dataclass(slots=True)
class FakeLink:
    info: VerifierInfo
    is_up: bool = True
    num_given_up: int = 0
    is_closed: bool = False

    async def describe(self, timeout_s: float) -> VerifierInfo:
        if not self.is_up:
            raise PeerUnavailable("down")
        return self.info

    async def generate(
        self, request: GenerationRequest, *, epoch: int, committed: Sequence[int], timeout_s: float
    ) -> AsyncGenerator[TokenStep, None]:
        yield TokenStep((1,))

    def give_up(self) -> None:
        self.num_given_up += 1

    async def close(self) -> None:
        self.is_closed = True


@dataclass(slots=True)
class Links:
    """Opens fake links by address; the address is the verifier's id unless a test says otherwise."""

    by_address: dict[str, FakeLink] = field(default_factory=dict)

    def connect(self, address: str) -> FakeLink:
        return self.by_address.setdefault(address, FakeLink(replace(INFO, verifier_id=address)))


@asynccontextmanager
async def running(pool: VerifierPool) -> AsyncIterator[None]:
    task = asyncio.create_task(pool.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def pool_of(links: Links, *addresses: str, **more: object) -> VerifierPool:
    return VerifierPool(addresses, links.connect, "hash", period_s=0.02, **more)  # type: ignore[arg-type]


async def test_a_session_stays_with_its_verifier_unless_that_one_is_full() -> None:
    links = Links()
    pool = pool_of(links, "a", "b")
    async with running(pool):
        await until(lambda: len(pool.healthy) == 2)
        for _ in range(10):
            chosen = pool.choose("b", ())
            assert chosen is not None
            assert chosen.address == "b"
        links.by_address["b"].info = replace(INFO, verifier_id="b", num_running=4)
        await until(lambda: any(verifier.load >= 1 for verifier in pool.healthy))
        chosen = pool.choose("b", ())
        assert chosen is not None
        assert chosen.address == "a"


async def test_the_less_loaded_of_two_is_chosen() -> None:
    links = Links()
    links.connect("a").info = replace(INFO, verifier_id="a", num_running=3)
    pool = pool_of(links, "a", "b")
    async with running(pool):
        await until(lambda: len(pool.healthy) == 2)
        assert {getattr(pool.choose(None, ()), "address", None) for _ in range(10)} == {"b"}
        assert getattr(pool.choose(None, {"b"}), "address", None) == "a"
        assert pool.choose(None, {"a", "b"}) is None


async def test_calls_just_sent_count_as_load_until_the_next_description() -> None:
    links = Links()
    pool = VerifierPool(("a", "b"), links.connect, "hash", period_s=30)
    async with running(pool):
        await until(lambda: len(pool.healthy) == 2)
        counts = {"a": 0, "b": 0}
        for _ in range(20):
            chosen = pool.choose(None, ())
            assert chosen is not None
            with chosen.call():
                counts[chosen.address] += 1
        assert abs(counts["a"] - counts["b"]) <= 1


async def test_silence_is_loss_only_after_several_questions_and_gives_up_running_calls() -> None:
    links = Links()
    pool = pool_of(links, "a")
    async with running(pool):
        await until(lambda: pool.is_ready)
        links.by_address["a"].is_up = False
        await until(lambda: not pool.is_ready)
        assert links.by_address["a"].num_given_up >= 1
        links.by_address["a"].is_up = True
        await until(lambda: pool.is_ready)
    assert links.by_address["a"].is_closed


async def test_a_broken_call_takes_a_verifier_out_until_its_next_answer() -> None:
    links = Links()
    pool = VerifierPool(("a",), links.connect, "hash", period_s=30)
    async with running(pool):
        await until(lambda: pool.is_ready)
        pool.report_lost(pool.healthy[0])
        assert not pool.is_ready
        assert await pool.wait_for_change(5)  # asked at once, not at the next period
        assert pool.is_ready


async def test_limits_are_the_tightest_and_outlive_the_verifiers() -> None:
    links = Links()
    links.connect("b").info = replace(INFO, verifier_id="b", max_context_len=40, vocab_size=120)
    pool = pool_of(links, "a", "b")
    with pytest.raises(PeerUnavailable):
        pool.limits()
    async with running(pool):
        await until(lambda: len(pool.healthy) == 2)
        assert (pool.limits().max_context_len, pool.limits().vocab_size) == (40, 100)
        for link in links.by_address.values():
            link.is_up = False
        await until(lambda: not pool.is_ready)
        assert pool.limits().max_context_len == 40


async def test_two_addresses_of_one_verifier_are_one_choice() -> None:
    links = Links()
    for address in ("localhost:1", "127.0.0.1:1"):
        links.connect(address).info = replace(INFO, verifier_id="same")
    pool = pool_of(links, "localhost:1", "127.0.0.1:1")
    async with running(pool):
        await until(lambda: pool.is_ready)
        await asyncio.sleep(0.05)
        assert len(pool.healthy) == 1


async def test_the_registry_adds_and_removes_and_its_outage_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_pool, "_LINGER_S", 0.2)
    listed: list[str] | None = ["b"]

    async def discover() -> Collection[str]:
        if listed is None:
            raise PeerUnavailable("Redis is away")
        return listed

    links = Links()
    pool = pool_of(links, "a", discover=discover)
    async with running(pool):
        await until(lambda: len(pool.healthy) == 2)
        listed = None
        await asyncio.sleep(0.4)
        assert len(pool.healthy) == 2
        listed = []
        await asyncio.sleep(0.05)
        assert len(pool.healthy) == 2, "a registry that lost its memory is not believed at once"
        await until(lambda: [verifier.address for verifier in pool.healthy] == ["a"])
        await until(lambda: links.by_address["b"].is_closed)
