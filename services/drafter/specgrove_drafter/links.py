"""The verifiers this drafter works for: one link each, redialled for as long as the verifier is listed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from specgrove.errors import PeerUnavailable, ProtocolViolation, SpecgroveError, VocabularyMismatch
from specgrove_drafter.backoff import Backoff
from specgrove_drafter.metrics import DrafterMetrics

_log = logging.getLogger(__name__)

# A refusal does not heal by itself within seconds: somebody has to change a setting or roll out a pod.
REFUSED_PAUSE_S = 10.0
# A stream that lived this long was a good one: the next failure starts the back-off anew.
GOOD_STREAM_S = 5.0


class Verifier(Protocol):
    """As much of a verifier's identity as a link needs."""

    @property
    def verifier_id(self) -> str: ...

    @property
    def incarnation(self) -> str: ...


Speculate = Callable[[str, Callable[[Verifier], None]], Awaitable[None]]


class AlreadyConnected(PeerUnavailable):
    """The verifier behind this address is already served over another one."""


class VerifierLinks:
    """Keeps a stream with every listed verifier. Lives on the event loop."""

    def __init__(
        self, speculate: Speculate, metrics: DrafterMetrics, *, refused_pause_s: float = REFUSED_PAUSE_S
    ) -> None:
        self._speculate = speculate
        self._metrics = metrics
        self._refused_pause_s = refused_pause_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._connected: dict[tuple[str, str], str] = {}  # (verifier id, incarnation) -> address

    @property
    def connected_addresses(self) -> frozenset[str]:
        return frozenset(self._connected.values())

    def update(self, addresses: Iterable[str]) -> None:
        """Dial new addresses and give up those that are gone, unless their stream is up: the stream knows best."""
        listed = set(addresses)
        for address in listed - self._tasks.keys():
            self._tasks[address] = asyncio.create_task(self._keep_up(address), name=f"verifier-{address}")
        for address in self._tasks.keys() - listed - self.connected_addresses:
            self._tasks.pop(address).cancel()

    async def stop(self) -> None:
        """End every stream."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_up(self, address: str) -> None:
        backoff = Backoff()
        reported = ""
        while True:
            connected_s: list[float] = []
            try:
                await self._connect(address, connected_s)
            except Exception as error:
                if connected_s:
                    reported = ""
                    if time.monotonic() - connected_s[0] > GOOD_STREAM_S:
                        backoff.reset()
                self._metrics.num_connect_failures.labels(type(error).__name__).inc()
                reported = _report(address, error, reported)
                await asyncio.sleep(self._pause_s(error, backoff))

    async def _connect(self, address: str, connected_s: list[float]) -> None:
        """One stream, from dialling to its end; notes in `connected_s` when the verifier accepted."""
        key: tuple[str, str] | None = None

        def on_welcome(verifier: Verifier) -> None:
            nonlocal key
            wanted = (verifier.verifier_id, verifier.incarnation)
            if wanted in self._connected:
                raise AlreadyConnected(f"verifier {wanted[0]} is already served at {self._connected[wanted]}")
            key = wanted
            connected_s.append(time.monotonic())
            self._connected[key] = address
            self._metrics.num_connects.inc()
            self._metrics.connections.set(len(self._connected))
            _log.info("connected", extra={"verifier": address, "verifier_id": verifier.verifier_id})

        try:
            await self._speculate(address, on_welcome)
        finally:
            if key is not None:
                del self._connected[key]
                self._metrics.connections.set(len(self._connected))

    def _pause_s(self, error: Exception, backoff: Backoff) -> float:
        if isinstance(error, VocabularyMismatch | ProtocolViolation | AlreadyConnected):
            return self._refused_pause_s
        return backoff.next_pause_s()


def _report(address: str, error: Exception, reported: str) -> str:
    """Log why a link is down, unless `reported` says the same: one line for a reason, not for each attempt."""
    reason = error.message if isinstance(error, SpecgroveError) else f"{type(error).__name__}: {error}"
    if reason != reported:
        where = {"verifier": address, "reason": reason}
        if isinstance(error, VocabularyMismatch | ProtocolViolation):
            _log.error("the verifier refuses this drafter; no drafts for it until that is put right", extra=where)
        elif isinstance(error, AlreadyConnected):
            _log.info("two addresses lead to one verifier; it is served once", extra=where)
        elif isinstance(error, SpecgroveError):
            _log.warning("not connected; dialling again", extra=where)
        else:
            _log.error("the stream failed unexpectedly; dialling again", extra=where, exc_info=error)
    return reason
