"""Which verifiers there are: those named in the settings and those listed in Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from specgrove.errors import PeerUnavailable
from specgrove.session import PodRegistry

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0


class AddressBook(Protocol):
    """Whoever wants to know the addresses."""

    def update(self, addresses: Sequence[str]) -> None: ...


class Discovery:
    """Tells `links` the present addresses once a second. While Redis is away the last known list stands."""

    def __init__(self, static: Sequence[str], registry: PodRegistry | None, links: AddressBook) -> None:
        self._static = tuple(static)
        self._registry = registry
        self._links = links
        self._listed: tuple[str, ...] = ()
        self._is_away = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._links.update(self._static)
        if self._registry is not None and self._task is None:
            self._task = asyncio.create_task(self._run(self._registry), name="discovery")

    async def stop(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, registry: PodRegistry) -> None:
        while True:
            try:
                self._listed = tuple(pod.address for pod in await registry.list_pods("verifier"))
                if self._is_away:
                    _log.info("Redis is back")
                self._is_away = False
            except PeerUnavailable as error:
                if not self._is_away:
                    _log.warning("keeping the last known verifiers", extra={"reason": error.message})
                self._is_away = True
            self._links.update((*self._static, *self._listed))
            await asyncio.sleep(INTERVAL_S)
