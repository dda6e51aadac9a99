"""Which drafters are attached, who drafts for whom, and whether waiting for them is worth it.

Lives on the engine's thread. A drafter is named by the number of its stream, so that one that comes back under its old
name is a new one here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove_verifier.generation import Generation
from specgrove_verifier.mailbox import DraftBudget

_log = logging.getLogger(__name__)
_LATENCY_WEIGHT = 0.2
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
_FULL_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Mirror this session from here."""

    session_key: int
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    budget: DraftBudget
    stop_token_ids: tuple[int, ...]
    features: bytes = b""  # what this drafter asked for in its Hello; empty = nothing is known
    rule: Rule = Rule.COUPLED
    expansion: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitTokens:
    """The committed sequence grew."""

    session_key: int
    from_len: int
    token_ids: tuple[int, ...]
    budget: DraftBudget
    features: bytes = b""


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Forget this session."""

    session_key: int
    reason: str


SessionUpdate = OpenSession | CommitTokens | CloseSession


class DrafterLink(Protocol):
    """The way to one drafter. `post` returns at once; updates are coalesced and never dropped."""

    def post(self, updates: Sequence[SessionUpdate]) -> None: ...


@dataclass(slots=True, eq=False)
class Drafter:
    """One attached drafter."""

    number: int
    drafter_id: str
    max_sessions: int
    link: DrafterLink
    sessions: set[int] = field(default_factory=set)
    is_responsive: bool = True  # False after a missed deadline, until something comes again
    num_misses: int = 0  # deadlines missed in a row
    wait_again_s: float = 0.0  # nobody waits for it before this time
    latency_s: float | None = None  # commit to tree, moving average
    outbox: list[SessionUpdate] = field(default_factory=list)
    full_until_s: float = 0.0  # it declined for want of room: asked again then, or when one of its sessions ends
    feature_layers: tuple[int, ...] = ()  # of the target, whose states it wants with each commit
    member_names: tuple[str, ...] = ()  # by bit number in a node's members

    @property
    def has_room(self) -> bool:
        return self.full_until_s <= time.monotonic() and len(self.sessions) < self.max_sessions


class DrafterPool:
    """Assigns generations to drafters and speaks to them; `flush` sends what has gathered in a step."""

    def __init__(self, drafters_per_session: int) -> None:
        self._per_session = drafters_per_session
        self._drafters: dict[int, Drafter] = {}

    def __len__(self) -> int:
        return len(self._drafters)

    def get(self, number: int) -> Drafter | None:
        return self._drafters.get(number)

    @property
    def drafters(self) -> Collection[Drafter]:
        """All that are attached; one that reconnects may be there twice for a while."""
        return self._drafters.values()

    def attach(self, drafter: Drafter) -> None:
        self._drafters[drafter.number] = drafter
        _log.info("drafter attached", extra={"drafter_id": drafter.drafter_id})

    def detach(self, number: int, generations: Iterable[Generation]) -> None:
        """Forget a drafter whose stream ended; its generations wait for it no longer."""
        drafter = self._drafters.pop(number, None)
        if drafter is None:
            return
        for generation in generations:
            generation.drafters -= {number}
            generation.mailbox.forget(number)
        _log.info("drafter detached", extra={"drafter_id": drafter.drafter_id})

    def assign(self, generation: Generation) -> None:
        """Give `generation` drafters up to the number a session may have, least loaded first, responsive first."""
        if not generation.request.speculation.is_enabled:
            return
        missing = self._per_session - len(generation.drafters)
        has_responsive = any(self._drafters[number].is_responsive for number in generation.drafters)
        candidates = sorted(
            (
                drafter
                for drafter in self._drafters.values()
                if drafter.number not in generation.drafters and drafter.has_room
            ),
            key=lambda drafter: (not drafter.is_responsive, len(drafter.sessions), drafter.number),
        )
        if missing <= 0 and not has_responsive and candidates and candidates[0].is_responsive:
            for number in generation.drafters:  # all that it has are silent: one that speaks takes their place
                self._drafters[number].sessions.discard(generation.key)
                self._drafters[number].outbox.append(CloseSession(generation.key, "silent"))
                generation.mailbox.forget(number)
            generation.drafters = frozenset()
            missing = self._per_session
        for drafter in candidates[: max(missing, 0)]:
            drafter.sessions.add(generation.key)
            generation.drafters |= {drafter.number}
            drafter.outbox.append(self._opening(generation, drafter, generation.mailbox.budget))

    def reopen(self, generation: Generation, number: int, budget: DraftBudget) -> None:
        """Send the whole session again to a drafter that lost its place."""
        drafter = self._drafters.get(number)
        if drafter is not None and number in generation.drafters:
            drafter.outbox.append(self._opening(generation, drafter, budget))

    def withdraw(self, generation: Generation, number: int, reason: str) -> None:
        """Take a session from one drafter (it has no room)."""
        drafter = self._drafters.get(number)
        generation.drafters -= {number}
        generation.mailbox.forget(number)
        if drafter is not None:
            drafter.sessions.discard(generation.key)
            drafter.full_until_s = time.monotonic() + _FULL_PAUSE_S
            drafter.outbox.append(CloseSession(generation.key, reason))

    def announce_commit(self, generation: Generation, from_len: int, token_ids: Sequence[int]) -> None:
        budget = generation.mailbox.budget
        for number in generation.drafters:
            drafter = self._drafters[number]
            features = _features_for(drafter, generation, budget)
            drafter.outbox.append(CommitTokens(generation.key, from_len, tuple(token_ids), budget, features))

    def close(self, generation: Generation, reason: str) -> None:
        for number in generation.drafters:
            drafter = self._drafters[number]
            drafter.sessions.discard(generation.key)
            drafter.full_until_s = 0.0
            drafter.outbox.append(CloseSession(generation.key, reason))
        generation.drafters = frozenset()

    def flush(self) -> None:
        """Hand everything that has gathered to the links."""
        for drafter in self._drafters.values():
            if drafter.outbox:
                drafter.link.post(tuple(drafter.outbox))
                drafter.outbox.clear()

    def note_answer(self, number: int, latency_s: float | None, *, is_in_time: bool = True) -> None:
        """Something came from a drafter; `latency_s` when it is known what it answers, late or not."""
        drafter = self._drafters.get(number)
        if drafter is None:
            return
        drafter.is_responsive = True
        if latency_s is not None:
            if is_in_time:
                drafter.num_misses = 0
            before = drafter.latency_s if drafter.latency_s is not None else latency_s
            drafter.latency_s = before + _LATENCY_WEIGHT * (latency_s - before)

    def note_silence(self, numbers: Iterable[int], now: float, *, is_excused: bool = False) -> None:
        """These did not answer in time: nobody waits for them until they speak again.

        The pause after that doubles with every miss in a row; an excused miss has none.
        """
        for number in numbers:
            drafter = self._drafters.get(number)
            if drafter is not None and drafter.is_responsive:
                drafter.is_responsive = False
                if not is_excused:
                    drafter.wait_again_s = now + min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2**drafter.num_misses)
                    drafter.num_misses += 1
                _log.debug("drafter missed its deadline", extra={"drafter_id": drafter.drafter_id})

    def worth_waiting_for(self, numbers: Iterable[int], now: float) -> frozenset[int]:
        """Those of `numbers` that answer these days."""
        return frozenset(
            number
            for number in numbers
            if (drafter := self._drafters.get(number)) is not None
            and drafter.is_responsive
            and drafter.wait_again_s <= now
        )

    def latency_s(self, numbers: Iterable[int]) -> float | None:
        """The longest usual latency among `numbers`; None while nothing was measured."""
        known = [
            drafter.latency_s
            for number in numbers
            if (drafter := self._drafters.get(number)) is not None and drafter.latency_s is not None
        ]
        return max(known, default=None)

    @property
    def wants_features(self) -> bool:
        """Whether any attached drafter asked for the target's states."""
        return any(drafter.feature_layers for drafter in self._drafters.values())

    def feature_layers(self, generations: Iterable[Generation]) -> frozenset[int]:
        """The layers whose states are wanted by those who draft for `generations`, or may come to while nobody does."""
        return frozenset(
            layer
            for generation in generations
            for number in generation.drafters or self._drafters
            for layer in self._drafters[number].feature_layers
        )

    @staticmethod
    def _opening(generation: Generation, drafter: Drafter, budget: DraftBudget) -> OpenSession:
        return OpenSession(
            generation.key,
            tuple(generation.tokens),
            _sampling_to_tell(generation),
            budget,
            tuple(sorted(generation.checker.stop_token_ids)),
            _features_for(drafter, generation, budget),
            generation.rule,
            generation.request.speculation.expansion,
        )


def _sampling_to_tell(generation: Generation) -> SamplingParams:
    """The sampling parameters, without the seed under rules whose draws no drafter may foresee."""
    sampling = generation.request.sampling
    return sampling if generation.rule is Rule.COUPLED else replace(sampling, seed=0)


def _features_for(drafter: Drafter, generation: Generation, budget: DraftBudget) -> bytes:
    """What `drafter` asked for of the newest base; nothing where it is not to draft."""
    if generation.features is None or budget.max_nodes == 0:
        return b""
    return generation.features.select(drafter.feature_layers)
