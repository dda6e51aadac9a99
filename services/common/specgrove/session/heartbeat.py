"""The background task that keeps a pod on the list, through outages of Redis."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self

from specgrove.errors import PeerUnavailable
from specgrove.session.pods import Pod, PodRegistry

_log = logging.getLogger(__name__)

MAX_BACKOFF_S = 5.0
MIN_PAUSE_S = 0.1
WITHDRAW_TIMEOUT_S = 1.0


class Heartbeat:
    """Announces `pod` and beats until stopped; never raises into the service, whatever Redis does.

    `interval_s` defaults to a third of the registry's TTL. While Redis is away it backs off (up to 5 s, with jitter)
    and logs the outage once and its end once. If another process announces itself under the same pod id, it says so and
    falls silent until that one is gone. Use it as an async context manager, or with `start` and `stop`.
    """

    def __init__(self, registry: PodRegistry, pod: Pod, interval_s: float | None = None) -> None:
        self._registry = registry
        self._pod = pod
        self._interval_s = registry.ttl_s / 3 if interval_s is None else interval_s
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._is_announced = False
        self._is_away = False
        self._is_silenced = False

    @property
    def pod(self) -> Pod:
        return self._pod

    async def start(self) -> None:
        """Begins to beat; does not wait for Redis."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"heartbeat-{self._pod.pod_id}")

    async def stop(self) -> None:
        """Ends the task and takes the pod off the list if Redis can be reached within a second."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self._is_stopping = True
        self._changed.set()  # wakes the task also where a library has swallowed the cancellation
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        try:
            async with asyncio.timeout(WITHDRAW_TIMEOUT_S):
                await self._registry.withdraw(self._pod)
        except (PeerUnavailable, TimeoutError) as error:
            _log.warning("could not withdraw the pod; it will expire by itself", extra={"reason": str(error)})

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Replaces the attributes that peers see, with a beat soon (at most ten a second)."""
        self._pod = replace(self._pod, attributes=dict(attributes))
        self._changed.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def _run(self) -> None:
        num_failures = 0
        while not self._is_stopping:
            self._changed.clear()
            try:
                await self._beat()
                num_failures = 0
                pause_s = self._interval_s
            except Exception as error:
                num_failures += 1
                pause_s = min(MAX_BACKOFF_S, self._interval_s * 2 ** min(num_failures - 1, 16))
                self._report_outage(error)
            await self._pause(pause_s * random.uniform(0.8, 1.0))

    async def _beat(self) -> None:
        if not self._is_announced:
            await self._registry.announce(self._pod)
            self._is_announced = True
            is_ours = True
        else:
            is_ours = await self._registry.heartbeat(self._pod)
        if self._is_away:
            self._is_away = False
            _log.info("Redis is back; the pod is announced again")
        if not is_ours and not self._is_silenced:
            _log.warning(
                "another process has announced itself under this pod id; give each its own --pod-id",
                extra={"pod_id": self._pod.pod_id, "role": self._pod.role},
            )
        self._is_silenced = not is_ours

    def _report_outage(self, error: Exception) -> None:
        if not self._is_away:
            self._is_away = True
            _log.warning("cannot announce the pod; peers keep what they know", extra={"reason": str(error)})

    async def _pause(self, pause_s: float) -> None:
        """Waits `pause_s`, or until the attributes change, but never so short that changes become a flood."""
        await asyncio.sleep(min(pause_s, MIN_PAUSE_S))
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            pass
