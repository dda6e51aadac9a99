"""Which pods are alive, on a real Redis, with heartbeats that outlive its outages."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator

import pytest

from specgrove.errors import PeerUnavailable
from specgrove.session import Heartbeat, Pod, PodRegistry, Redis, connect
from support.redis_server import RedisServer


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def role() -> str:
    """A role of this test's own, since other tests use the same server."""
    return f"role-{uuid.uuid4().hex}"


def pod_of(role: str, pod_id: str = "pod-0", incarnation: str = "a", **attributes: str) -> Pod:
    return Pod(role, pod_id, incarnation, f"{pod_id}:50051", attributes)


async def pods_once(registry: PodRegistry, role: str, num_pods: int, within_s: float = 3.0) -> tuple[Pod, ...]:
    """The pods of `role` as soon as there are `num_pods`."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            pods = await registry.list_pods(role)
        except PeerUnavailable:
            pods = ()
        if len(pods) == num_pods:
            return pods
        assert time.monotonic() < deadline, f"still {len(pods)} pods, not {num_pods}"
        await asyncio.sleep(0.02)


async def test_announced_pods_are_listed_by_role_in_order(redis: Redis, role: str) -> None:
    registry = PodRegistry(redis, ttl_s=30)
    assert await registry.list_pods(role) == ()
    second, first = pod_of(role, "pod-1"), pod_of(role, "pod-0", model="smol", note="é")
    await registry.announce(second)
    await registry.announce(first)
    await registry.announce(pod_of(role + "-other"))
    assert await registry.list_pods(role) == (first, second)


async def test_a_pod_without_a_heartbeat_disappears(redis: Redis, role: str) -> None:
    registry = PodRegistry(redis, ttl_s=1.0)
    alive, dead = pod_of(role, "alive"), pod_of(role, "dead")
    await registry.announce(alive)
    await registry.announce(dead)
    for _ in range(4):
        await asyncio.sleep(0.4)
        assert await registry.heartbeat(alive)
    assert await registry.list_pods(role) == (alive,)


async def test_the_index_forgets_the_dead_and_has_a_ttl(redis: Redis, role: str) -> None:
    await PodRegistry(redis, ttl_s=0.1).announce(pod_of(role, "dead"))
    await asyncio.sleep(1.3)
    registry = PodRegistry(redis, ttl_s=0.6)
    await registry.announce(pod_of(role, "alive"))
    assert await redis.zrange(f"pods:{role}", 0, -1) == ["alive"]
    assert await redis.pttl(f"pods:{role}") > 0
    assert await redis.pttl(f"pod:{role}:alive") > 0


async def test_a_restarted_pod_replaces_its_former_self(redis: Redis, role: str) -> None:
    registry = PodRegistry(redis, ttl_s=30)
    old, new = pod_of(role, incarnation="a"), pod_of(role, incarnation="b")
    await registry.announce(old)
    await registry.announce(new)
    assert await registry.heartbeat(old) is False
    assert await registry.withdraw(old) is False
    assert await registry.list_pods(role) == (new,)
    assert await registry.withdraw(new) is True
    assert await registry.list_pods(role) == ()


async def test_a_heartbeat_brings_a_forgotten_pod_back(redis: Redis, role: str) -> None:
    registry = PodRegistry(redis, ttl_s=30)
    pod = pod_of(role)
    await registry.announce(pod)
    await redis.delete(f"pod:{role}:pod-0", f"pods:{role}")
    assert await registry.heartbeat(pod) is True
    assert await registry.list_pods(role) == (pod,)


@pytest.mark.parametrize("record", [b"\xff\xfe", b"nonsense", b"7", b"{}", b'{"incarnation": "a", "address": ""}'])
async def test_records_that_are_not_ours_are_left_out_and_replaced(redis: Redis, role: str, record: bytes) -> None:
    registry = PodRegistry(redis, ttl_s=30)
    pod = pod_of(role)
    await registry.announce(pod)
    await redis.set(f"pod:{role}:pod-0", record, px=30_000)
    assert await registry.list_pods(role) == ()
    assert await registry.heartbeat(pod) is True
    assert await registry.list_pods(role) == (pod,)


@pytest.mark.parametrize("field", ["role", "pod_id", "incarnation", "address"])
def test_a_pod_needs_all_its_names(field: str) -> None:
    names = {"role": "verifier", "pod_id": "p", "incarnation": "a", "address": "h:1"}
    with pytest.raises(ValueError, match=f"a pod needs a {field}"):
        Pod(**{**names, field: ""})


async def test_heartbeats_keep_a_pod_listed_until_it_stops(redis: Redis, role: str) -> None:
    registry = PodRegistry(redis, ttl_s=1.0)
    async with Heartbeat(registry, pod_of(role)) as heartbeat:
        assert await pods_once(registry, role, 1) == (heartbeat.pod,)
        await asyncio.sleep(1.6)
        assert len(await registry.list_pods(role)) == 1
    assert await registry.list_pods(role) == ()


async def test_changed_attributes_are_seen_at_once(redis: Redis, role: str) -> None:
    registry = PodRegistry(redis, ttl_s=30)
    async with Heartbeat(registry, pod_of(role, num_running="0")) as heartbeat:
        await pods_once(registry, role, 1)
        heartbeat.set_attributes({"num_running": "3"})
        deadline = time.monotonic() + 2
        while (await registry.list_pods(role))[0].attributes != {"num_running": "3"}:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


async def test_heartbeats_outlive_an_outage_and_say_so_once(
    redis_server: RedisServer, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "specgrove.session")
    redis = connect(redis_server.url)
    registry = PodRegistry(redis, ttl_s=0.9)
    async with Heartbeat(registry, pod_of(role)):
        await pods_once(registry, role, 1)
        redis_server.stop()
        await asyncio.sleep(1.0)
        redis_server.start()
        await pods_once(registry, role, 1, within_s=6)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "cannot announce the pod; peers keep what they know",
        "Redis is back; the pod is announced again",
    ]
    await redis.aclose()


async def test_a_service_starts_and_stops_without_redis(
    redis_server: RedisServer, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.stop()
    redis = connect(redis_server.url, timeout_s=0.2)
    registry = PodRegistry(redis, ttl_s=0.3)
    async with Heartbeat(registry, pod_of(role)):
        await asyncio.sleep(0.1)
        redis_server.start()
        await pods_once(registry, role, 1)
        redis_server.freeze()
        started = time.monotonic()
    assert time.monotonic() - started < 1.5
    assert "could not withdraw" in caplog.text
    await redis.aclose()


async def test_of_two_processes_with_one_id_the_later_speaks_and_the_earlier_says_why_not(
    redis: Redis, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = PodRegistry(redis, ttl_s=2.0)
    async with Heartbeat(registry, pod_of(role, incarnation="a"), interval_s=0.05):
        await pods_once(registry, role, 1)
        async with Heartbeat(registry, pod_of(role, incarnation="b"), interval_s=0.05) as later:
            await asyncio.sleep(0.5)
            assert await registry.list_pods(role) == (later.pod,)
            assert caplog.text.count("another process has announced itself under this pod id") == 1
        (survivor,) = await pods_once(registry, role, 1)
        assert survivor.incarnation == "a"
