"""A drafter as one object: start it on an event loop, stop it, look at it. `build.py` makes one from settings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from specgrove.session import Heartbeat
from specgrove_drafter.discovery import Discovery
from specgrove_drafter.engine import DraftEngine
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.inbox import Inbox
from specgrove_drafter.links import VerifierLinks
from specgrove_drafter.metrics import DrafterMetrics

ENGINE_STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Drafter:
    """The parts of a running drafter, without its health port and metrics page (those belong to the process)."""

    ensemble: Ensemble
    inbox: Inbox
    engine: DraftEngine
    links: VerifierLinks
    discovery: Discovery
    heartbeat: Heartbeat | None
    metrics: DrafterMetrics

    async def start(self) -> None:
        """Begin to dial and draft. Does not wait for any verifier or for Redis."""
        self.engine.start()
        await self.discovery.start()
        if self.heartbeat is not None:
            await self.heartbeat.start()

    async def stop(self) -> None:
        """End the streams, then the engine. Verifiers go on without drafts from here at once."""
        if self.heartbeat is not None:
            await self.heartbeat.stop()
        await self.discovery.stop()
        await self.links.stop()
        await asyncio.to_thread(self.engine.stop, ENGINE_STOP_TIMEOUT_S)
