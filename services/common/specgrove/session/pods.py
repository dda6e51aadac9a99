"""Which pods are alive: a record per pod that lives as long as its heartbeat.

    pod:{role}:{id}  string  JSON of the pod                             TTL: a few heartbeats
    pods:{role}      zset    pod id -> when it was last heard of          TTL: the same

The index lists a role without a SCAN through all sessions; the record alone decides whether a pod is alive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from specgrove.session.connection import Redis, redis_call
from specgrove.session.scripts import HEARTBEAT, WITHDRAW

DEFAULT_POD_TTL_S = 10.0


@dataclass(frozen=True, slots=True)
class Pod:
    """One process of a pool. `incarnation` tells a restarted pod from the one before it."""

    role: str  # "verifier" or "drafter"
    pod_id: str
    incarnation: str
    address: str  # host:port that peers dial
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("role", "pod_id", "incarnation", "address"):
            if not getattr(self, name):
                raise ValueError(f"a pod needs a {name}")
        if ":" in self.role:
            raise ValueError(f"a role must not contain a colon, got {self.role!r}")


class PodRegistry:
    """Announces and lists pods.

    Every method raises PeerUnavailable, within the timeout of the connection, if Redis is away.
    """

    def __init__(self, redis: Redis, ttl_s: float = DEFAULT_POD_TTL_S) -> None:
        if ttl_s <= 0:
            raise ValueError(f"ttl_s must be positive, got {ttl_s}")
        self._redis = redis
        self.ttl_s = ttl_s
        self._ttl_ms = max(1, round(ttl_s * 1000))

    async def announce(self, pod: Pod) -> None:
        """Makes `pod` known for `ttl_s`, in place of any earlier incarnation of the same id."""
        async with redis_call(self._redis, "announce the pod"):
            await self._redis.set(_key(pod.role, pod.pod_id), _to_json(pod), px=self._ttl_ms)
            await self._index(pod)

    async def heartbeat(self, pod: Pod) -> bool:
        """Keeps `pod` known for another `ttl_s`, also after Redis has forgotten it.

        False if another incarnation has announced itself under this id since: then this one is not known any more.
        """
        arguments = [pod.incarnation, _to_json(pod), str(self._ttl_ms)]
        async with redis_call(self._redis, "send the heartbeat"):
            is_ours = bool(await self._redis.eval(HEARTBEAT, 1, _key(pod.role, pod.pod_id), *arguments))
            if is_ours:
                await self._index(pod)
        return is_ours

    async def withdraw(self, pod: Pod) -> bool:
        """Takes `pod` off the list at once; False if it was not there or another incarnation holds the id."""
        async with redis_call(self._redis, "withdraw the pod"):
            return bool(await self._redis.eval(WITHDRAW, 1, _key(pod.role, pod.pod_id), pod.incarnation))

    async def list_pods(self, role: str) -> tuple[Pod, ...]:
        """The live pods of `role`, ordered by id. Records that cannot be read are left out."""
        async with redis_call(self._redis, "list the pods"):
            pod_ids: list[str] = sorted(cast(list[str], await self._redis.zrange(_index_key(role), 0, -1)))
            if not pod_ids:
                return ()
            keys = [_key(role, pod_id) for pod_id in pod_ids]
            records = cast(list[str | None], await self._redis.mget(keys))
        pods = [_from_json(role, pod_id, record) for pod_id, record in zip(pod_ids, records, strict=True)]
        return tuple(pod for pod in pods if pod is not None)

    async def _index(self, pod: Pod) -> None:
        """Puts the id on the list of its role and drops ids that were not heard of for a while."""
        seconds, micros = await self._redis.time()
        now_ms = seconds * 1000 + micros // 1000
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.zadd(_index_key(pod.role), {pod.pod_id: now_ms})
        pipeline.zremrangebyscore(_index_key(pod.role), "-inf", now_ms - 2 * self._ttl_ms)
        pipeline.pexpire(_index_key(pod.role), 2 * self._ttl_ms)
        await pipeline.execute()


def _key(role: str, pod_id: str) -> str:
    return f"pod:{role}:{pod_id}"


def _index_key(role: str) -> str:
    return f"pods:{role}"


def _to_json(pod: Pod) -> str:
    return json.dumps(
        {"incarnation": pod.incarnation, "address": pod.address, "attributes": dict(pod.attributes)}, sort_keys=True
    )


def _from_json(role: str, pod_id: str, record: str | None) -> Pod | None:
    """The pod in `record`; None if it is gone or written by something that does not speak this format."""
    if record is None:
        return None
    try:
        fields = json.loads(record)
        attributes = {str(name): str(value) for name, value in fields["attributes"].items()}
        return Pod(role, pod_id, str(fields["incarnation"]), str(fields["address"]), attributes)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
