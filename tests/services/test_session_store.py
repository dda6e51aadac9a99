"""Placement of sessions on a real Redis: take-over, fencing, expiry, outages."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator

import pytest

from specgrove.errors import ConfigError, InvalidInput, PeerUnavailable
from specgrove.session import Redis, SessionStore, connect
from support.redis_server import RedisServer


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def session_id() -> str:
    return f"test-{uuid.uuid4().hex}"


async def test_a_claimed_session_is_found(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    assert await store.lookup(session_id) is None
    placement = await store.claim(session_id, "verifier-0", "a1")
    assert (placement.session_id, placement.verifier_id, placement.incarnation) == (session_id, "verifier-0", "a1")
    assert placement.committed_len == 0
    assert abs(placement.last_used_s - time.time()) < 60
    assert await store.lookup(session_id) == placement


async def test_every_claim_is_above_the_one_before(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    epochs = [(await store.claim(session_id, f"verifier-{number % 2}", "a")).epoch for number in range(50)]
    assert epochs == sorted(set(epochs))


async def test_concurrent_claims_get_different_epochs_and_the_highest_owns(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    placements = await asyncio.gather(*(store.claim(session_id, f"verifier-{number}", "a") for number in range(40)))
    assert len({placement.epoch for placement in placements}) == 40
    winner = max(placements, key=lambda placement: placement.epoch)
    assert await store.lookup(session_id) == winner


async def test_a_taken_over_session_keeps_its_committed_length(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    old = await store.claim(session_id, "verifier-0", "a")
    assert await store.record_progress(session_id, old.epoch, 17)
    new = await store.claim(session_id, "verifier-1", "b")
    assert new.committed_len == 17
    assert new.epoch > old.epoch


async def test_the_old_owner_is_told_to_be_silent(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    old = await store.claim(session_id, "verifier-0", "a")
    new = await store.claim(session_id, "verifier-1", "b")
    assert await store.record_progress(session_id, old.epoch, 99) is False
    assert await store.record_progress(session_id, new.epoch, 5) is True
    found = await store.lookup(session_id)
    assert found is not None
    assert (found.verifier_id, found.committed_len) == ("verifier-1", 5)


async def test_progress_never_goes_back(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    epoch = (await store.claim(session_id, "verifier-0", "a")).epoch
    for committed_len in (3, 9, 7):
        assert await store.record_progress(session_id, epoch, committed_len)
    found = await store.lookup(session_id)
    assert found is not None
    assert found.committed_len == 9


async def test_progress_of_a_forgotten_session_is_nobodys_business(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    assert await store.record_progress(session_id, 5, 10) is True
    assert await store.lookup(session_id) is None


async def test_release_forgets_the_owner_but_not_the_epoch(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    first = await store.claim(session_id, "verifier-0", "a")
    assert await store.release(session_id, first.epoch) is True
    assert await store.lookup(session_id) is None
    second = await store.claim(session_id, "verifier-1", "b")
    assert second.epoch > first.epoch
    assert second.committed_len == 0
    assert await store.record_progress(session_id, first.epoch, 1) is False


async def test_only_the_newest_owner_or_nobody_in_particular_releases(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    old = await store.claim(session_id, "verifier-0", "a")
    await store.claim(session_id, "verifier-1", "b")
    assert await store.release(session_id, old.epoch) is False
    assert await store.lookup(session_id) is not None
    assert await store.release(session_id) is True
    assert await store.lookup(session_id) is None
    assert await store.release(session_id) is True


async def test_an_unused_session_expires_and_use_keeps_it(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=1.0)
    epoch = (await store.claim(session_id, "verifier-0", "a")).epoch
    for committed_len in range(1, 5):
        await asyncio.sleep(0.4)
        assert await store.record_progress(session_id, epoch, committed_len)
    assert await store.lookup(session_id) is not None
    await asyncio.sleep(1.2)
    assert await store.lookup(session_id) is None
    assert (await store.claim(session_id, "verifier-0", "a")).epoch > epoch


async def test_every_key_has_a_ttl(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    epoch = (await store.claim(session_id, "verifier-0", "a")).epoch
    for step in (store.record_progress(session_id, epoch, 1), store.release(session_id, epoch)):
        await step
        assert 0 < await redis.ttl(f"session:{session_id}") <= 60


async def test_a_record_that_is_not_ours_is_read_as_nobody_and_overwritten(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)
    fields = ("verifier_id", "incarnation", "epoch", "committed_len", "last_used_s")
    await redis.hset(f"session:{session_id}", mapping=dict.fromkeys(fields, b"\xff?"))
    await redis.expire(f"session:{session_id}", 60)
    assert await store.lookup(session_id) is None
    assert (await store.claim(session_id, "verifier-0", "a")).committed_len == 0


@pytest.mark.parametrize("wrong", ["", "x" * 257, "a\nb", "\ud800"])
async def test_a_session_id_must_be_sensible(redis: Redis, wrong: str) -> None:
    store = SessionStore(redis)
    for call in (store.lookup(wrong), store.claim(wrong, "v", "a"), store.record_progress(wrong, 1, 1)):
        with pytest.raises(InvalidInput) as caught:
            await call
        assert caught.value.field == "session_id"


async def test_session_ids_may_hold_any_printable_text(redis: Redis) -> None:
    store = SessionStore(redis, ttl_s=5)
    placement = await store.claim("user:42 {é} 木", "verifier-0", "a")
    assert await store.lookup("user:42 {é} 木") == placement


async def test_epochs_go_on_after_redis_has_lost_its_memory(redis_server: RedisServer) -> None:
    redis = connect(redis_server.url)
    store = SessionStore(redis, ttl_s=60)
    before = await store.claim("s", "verifier-0", "a")
    redis_server.stop()
    redis_server.start()
    assert await store.lookup("s") is None  # the pooled connection was closed by the restart; nobody notices
    assert (await store.claim("s", "verifier-1", "b")).epoch > before.epoch
    await redis.aclose()


async def test_a_redis_that_is_gone_is_a_quick_typed_error(redis_server: RedisServer) -> None:
    redis = connect(redis_server.url)
    store = SessionStore(redis, ttl_s=60)
    await store.claim("s", "verifier-0", "a")
    redis_server.stop()
    started = time.monotonic()
    with pytest.raises(PeerUnavailable, match="cannot look the session up: Redis"):
        await store.lookup("s")
    assert time.monotonic() - started < 1
    await redis.aclose()


async def test_a_redis_that_hangs_costs_no_more_than_the_timeout(redis_server: RedisServer) -> None:
    redis = connect(redis_server.url, timeout_s=0.3)
    store = SessionStore(redis, ttl_s=60)
    await store.claim("s", "verifier-0", "a")
    redis_server.freeze()
    started = time.monotonic()
    outcomes = await asyncio.gather(*(store.lookup("s") for _ in range(50)), return_exceptions=True)
    assert time.monotonic() - started < 1.5
    assert {type(outcome) for outcome in outcomes} == {PeerUnavailable}
    redis_server.thaw()
    assert await store.lookup("s") is not None
    await redis.aclose()


async def test_a_malformed_url_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="Redis URL is wrong"):
        connect("localhost:6379")


async def test_cancelling_a_caller_always_ends_it_and_spoils_nothing(redis: Redis, session_id: str) -> None:
    store = SessionStore(redis, ttl_s=60)

    async def look_and_stay() -> None:
        await store.lookup(session_id)
        await asyncio.sleep(60)

    for num_turns in range(60):
        task = asyncio.create_task(look_and_stay())
        for _ in range(num_turns % 20):
            await asyncio.sleep(0)
        task.cancel()
        _, pending = await asyncio.wait([task], timeout=2)
        assert not pending, f"the cancellation was swallowed after {num_turns % 20} turns of the loop"
    assert await store.lookup(session_id) is None
