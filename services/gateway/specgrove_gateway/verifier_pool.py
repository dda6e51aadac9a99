"""The verifiers this gateway knows, how they are, and which one should run the next generation.

Known = the static list and the registry's, read again every second; when the registry is away the last list holds.
Each verifier is asked to describe itself every second. After three questions without an answer it is lost: its running
calls are given up (they resume elsewhere). A broken call takes it out at once. Its next answer brings it back.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from specgrove.errors import PeerUnavailable, SpecgroveError
from specgrove_gateway.generation import GenerationRequest, TokenStep
from specgrove_gateway.request_builder import ModelLimits

_log = logging.getLogger(__name__)
_PERIOD_S = 1.0
_DESCRIBE_TIMEOUT_S = 2.0
# A registry that lost its memory lists nobody for a moment. A verifier that really leaves refuses calls by itself.
_LINGER_S = 10.0
_MAX_SILENT_DESCRIBES = 3  # a busy verifier may miss one deadline


@dataclass(frozen=True, slots=True)
class VerifierInfo:
    """What a verifier says of itself."""

    verifier_id: str
    incarnation: str
    model: str
    vocab_hash: str
    vocab_size: int
    max_context_len: int
    num_running: int
    num_waiting: int
    max_sessions: int


class VerifierLink(Protocol):
    """The connection to one verifier."""

    async def describe(self, timeout_s: float) -> VerifierInfo:
        """Raises PeerUnavailable when it does not answer in time."""
        ...

    def generate(
        self, request: GenerationRequest, *, epoch: int, committed: Sequence[int], timeout_s: float
    ) -> AsyncGenerator[TokenStep, None]:
        """The steps after `committed`. Closing it cancels the call."""
        ...

    def give_up(self) -> None:
        """End every running call with PeerUnavailable."""
        ...

    async def close(self) -> None: ...


class Verifier:
    """One known verifier. `info` is its last description (None before the first)."""

    def __init__(self, address: str, link: VerifierLink) -> None:
        self.address = address
        self.link = link
        self.info: VerifierInfo | None = None
        self.is_healthy = False
        self.is_reported = False  # its health has been logged once
        self.num_calls = 0
        self.num_started = 0  # calls since the last description, which does not know of them yet
        self.check_now = asyncio.Event()

    @property
    def load(self) -> float:
        """Generations running, waiting and just sent, as a share of what it takes at once."""
        if self.info is None:
            return float("inf")
        busy = self.info.num_running + self.info.num_waiting + self.num_started
        return busy / max(1, self.info.max_sessions)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a generation for the block."""
        self.num_calls += 1
        self.num_started += 1
        try:
            yield
        finally:
            self.num_calls -= 1


class VerifierPool:
    """Keeps itself current while `run` runs. `connect` opens a link; `discover` lists the registry's addresses."""

    def __init__(
        self,
        static_addresses: Sequence[str],
        connect: Callable[[str], VerifierLink],
        vocab_hash: str,
        discover: Callable[[], Awaitable[Collection[str]]] | None = None,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._static = tuple(static_addresses)
        self._connect = connect
        self._vocab_hash = vocab_hash
        self._discover = discover
        self._period_s = period_s
        self._verifiers: dict[str, Verifier] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._retired: list[Verifier] = []
        self._limits: ModelLimits | None = None
        self._changed = asyncio.Event()
        self._is_registry_away = False
        self._last_listed: dict[str, float] = {}  # address -> when the registry last named it

    @property
    def healthy(self) -> list[Verifier]:
        """Those that may be given work, each once even if two addresses lead to it."""
        by_identity: dict[tuple[str, str], Verifier] = {}
        for verifier in self._verifiers.values():
            if verifier.is_healthy and verifier.info is not None:
                by_identity.setdefault((verifier.info.verifier_id, verifier.info.incarnation), verifier)
        return list(by_identity.values())

    @property
    def is_ready(self) -> bool:
        return any(verifier.is_healthy for verifier in self._verifiers.values())

    def limits(self) -> ModelLimits:
        """The tightest limits of the healthy verifiers, or the last known. Raises PeerUnavailable before the first."""
        described = [verifier.info for verifier in self.healthy if verifier.info is not None]
        if described:
            self._limits = ModelLimits(
                min(info.max_context_len for info in described), min(info.vocab_size for info in described)
            )
        if self._limits is None:
            raise PeerUnavailable("no verifier has answered yet; try again in a few seconds")
        return self._limits

    def choose(self, sticky_id: str | None, excluded: Collection[str]) -> Verifier | None:
        """The session's own verifier unless it is full, else the less loaded of two; None when nobody is left."""
        candidates = [verifier for verifier in self.healthy if verifier.address not in excluded]
        if not candidates:
            return None
        pair = random.sample(candidates, min(2, len(candidates)))
        best = min(pair, key=lambda verifier: verifier.load)
        for verifier in candidates:
            if verifier.info is not None and verifier.info.verifier_id == sticky_id:
                return best if verifier.load >= 1.0 > best.load else verifier
        return best

    def report_lost(self, verifier: Verifier) -> None:
        """A call found `verifier` unreachable: out of the choice until it answers again, and it is asked at once."""
        self._set_health(verifier, False, "a call was refused or broken")
        verifier.check_now.set()

    async def wait_for_change(self, timeout_s: float) -> bool:
        """True once any verifier's health changed; False after `timeout_s`."""
        changed = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Discover and watch until cancelled."""
        try:
            while True:
                await self._reconcile(await self._known_addresses())
                await asyncio.sleep(self._period_s)
        finally:
            for task in self._watchers.values():
                task.cancel()
            await asyncio.gather(*self._watchers.values(), return_exceptions=True)
            for verifier in [*self._verifiers.values(), *self._retired]:
                await verifier.link.close()

    async def _known_addresses(self) -> set[str]:
        """Static addresses, and those that the registry listed within the last `_LINGER_S`."""
        if self._discover is None:
            return set(self._static)
        now = time.monotonic()
        try:
            listed: Collection[str] = await self._discover()
        except SpecgroveError as error:
            if not self._is_registry_away:
                _log.warning("the registry is away, keeping the verifiers known so far: %s", error)
            self._is_registry_away = True
            listed = tuple(self._last_listed)
        else:
            if self._is_registry_away:
                _log.info("the registry is back")
            self._is_registry_away = False
        self._last_listed.update(dict.fromkeys(listed, now))
        self._last_listed = {
            address: listed_at for address, listed_at in self._last_listed.items() if now - listed_at < _LINGER_S
        }
        return {*self._static, *self._last_listed}

    async def _reconcile(self, addresses: set[str]) -> None:
        for address in addresses - set(self._verifiers):
            verifier = Verifier(address, self._connect(address))
            self._verifiers[address] = verifier
            self._watchers[address] = asyncio.create_task(self._watch(verifier), name=f"watch {address}")
        for address in set(self._verifiers) - addresses:
            verifier = self._verifiers.pop(address)
            self._watchers.pop(address).cancel()
            self._retired.append(verifier)
            _log.info("verifier %s left", address)
        for verifier in [retired for retired in self._retired if not retired.num_calls]:
            self._retired.remove(verifier)
            await verifier.link.close()

    async def _watch(self, verifier: Verifier) -> None:
        num_silent = 0
        while True:
            verifier.check_now.clear()
            try:
                info = await verifier.link.describe(_DESCRIBE_TIMEOUT_S)
            except SpecgroveError as error:
                num_silent += 1
                if num_silent >= _MAX_SILENT_DESCRIBES or verifier.info is None:
                    self._set_health(verifier, False, error.message)
                    verifier.link.give_up()
            else:
                num_silent = 0
                self._accept(verifier, info)
            try:
                async with asyncio.timeout(self._period_s):
                    await verifier.check_now.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(self._period_s / 10)  # a refused call and its check must not chase each other

    def _accept(self, verifier: Verifier, info: VerifierInfo) -> None:
        verifier.info = info
        verifier.num_started = 0
        if info.vocab_hash != self._vocab_hash:
            self._set_health(
                verifier, False, f"its vocabulary {info.vocab_hash} is not the gateway tokenizer's {self._vocab_hash}"
            )
        else:
            self._set_health(verifier, True, f"serves {info.model}")

    def _set_health(self, verifier: Verifier, is_healthy: bool, reason: str) -> None:
        if verifier.is_healthy == is_healthy and verifier.is_reported:
            return
        verifier.is_reported = True
        verifier.is_healthy = is_healthy
        level = logging.INFO if is_healthy else logging.WARNING
        _log.log(level, "verifier %s is %s: %s", verifier.address, "healthy" if is_healthy else "not healthy", reason)
        self._changed.set()
        self._changed = asyncio.Event()
