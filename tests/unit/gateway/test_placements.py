"""Placement never stands in the way: epochs only ever grow, with Redis, without it, and across its outages."""

from __future__ import annotations

import time

import pytest

from specgrove.session import SessionStore, connect
from specgrove_gateway.placements import Placements
from support.redis_server import RedisServer


async def test_epochs_grow_without_redis() -> None:
    placements = Placements(None)
    epochs = [await placements.claim("s", "v", "1") for _ in range(100)]
    assert sorted(set(epochs)) == epochs
    assert await placements.sticky_verifier("s") is None
    placements.note_progress("s", epochs[-1], 5)
    await placements.flush()


async def test_epochs_grow_across_an_outage_that_costs_its_timeout_once(redis_server: RedisServer) -> None:
    redis = connect(redis_server.url)
    placements = Placements(SessionStore(redis))
    before = await placements.claim("s", "v", "1")
    assert await placements.sticky_verifier("s") == "v"
    redis_server.freeze()
    during = await placements.claim("s", "v", "1")
    started_at = time.monotonic()
    for _ in range(20):
        await placements.claim("s", "v", "1")
    assert time.monotonic() - started_at < 0.2
    redis_server.thaw()
    placements._away_until = 0.0
    after = await placements.claim("s", "v", "1")
    assert before < during < after
    await redis.aclose()


async def test_only_the_newest_progress_is_written(redis_url: str) -> None:
    redis = connect(redis_url)
    store = SessionStore(redis)
    placements = Placements(store)
    epoch = await placements.claim("progress-1", "v", "1")
    for committed_len in range(1, 50):
        placements.note_progress("progress-1", epoch, committed_len)
    await placements.flush()
    placement = await store.lookup("progress-1")
    assert placement is not None
    assert placement.committed_len == 49
    await redis.aclose()


@pytest.mark.parametrize("epoch", ["1e400", "99999999999999999999", "9007199254740993", "nan", "-5", "x"])
async def test_a_record_with_an_impossible_epoch_is_as_good_as_none(redis_url: str, epoch: str) -> None:
    redis = connect(redis_url)
    placements = Placements(SessionStore(redis))
    await redis.hset("session:odd", mapping={"verifier_id": "v", "epoch": epoch, "committed_len": "1"})
    first = await placements.claim("odd", "v", "1")
    second = await placements.claim("odd", "v", "1")
    assert 0 < first < second < 2**53
    await placements.sticky_verifier("odd")
    placements.note_progress("odd", second, 5)
    await placements.flush()
    assert await placements.claim("healthy", "v", "1") > 0
    assert await placements.sticky_verifier("healthy") == "v"  # Redis counts as reachable still
    await redis.aclose()
