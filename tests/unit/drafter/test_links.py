"""Dialling: back-off, refusals, verifiers that go and come, lists that change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from specgrove.errors import PeerUnavailable, VocabularyMismatch
from specgrove.telemetry import CollectorRegistry
from specgrove_drafter.backoff import Backoff
from specgrove_drafter.links import Verifier, VerifierLinks
from specgrove_drafter.metrics import DrafterMetrics
from support.waiting import until


@dataclass(frozen=True, slots=True)
class SomeVerifier:
    verifier_id: str
    incarnation: str = "one"


@dataclass(slots=True)
class Network:
    """Verifiers by address; streams last until `cut`."""

    verifiers: dict[str, SomeVerifier] = field(default_factory=dict)
    refusing: set[str] = field(default_factory=set)
    attempts: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def speculate(self, address: str, on_welcome: Callable[[Verifier], None]) -> None:
        self.attempts.append(address)
        if address in self.refusing:
            raise VocabularyMismatch("the vocabularies differ")
        if address not in self.verifiers:
            raise PeerUnavailable("nobody there")
        on_welcome(self.verifiers[address])
        while address in self.verifiers:
            self.changed.clear()
            await self.changed.wait()
        raise PeerUnavailable("the verifier ended the stream")

    def cut(self, address: str) -> None:
        del self.verifiers[address]
        self.changed.set()


def make_links(network: Network, refused_pause_s: float = 10.0) -> VerifierLinks:
    metrics = DrafterMetrics(CollectorRegistry(), ["m"])
    return VerifierLinks(network.speculate, metrics, refused_pause_s=refused_pause_s)


async def test_a_verifier_that_comes_back_is_dialled_within_two_seconds() -> None:
    network = Network({"a:1": SomeVerifier("a")})
    links = make_links(network)
    links.update(["a:1"])
    await until(lambda: links.connected_addresses == {"a:1"})
    network.cut("a:1")
    await until(lambda: not links.connected_addresses)
    await asyncio.sleep(0.5)
    network.verifiers["a:1"] = SomeVerifier("a", "two")
    await until(lambda: links.connected_addresses == {"a:1"}, timeout_s=2.0)
    await links.stop()
    assert not links.connected_addresses


async def test_a_refusal_is_logged_clearly_and_not_hammered(caplog: pytest.LogCaptureFixture) -> None:
    network = Network(refusing={"a:1"})
    links = make_links(network)
    with caplog.at_level(logging.ERROR):
        links.update(["a:1"])
        await asyncio.sleep(0.4)
    await links.stop()
    assert network.attempts == ["a:1"]
    assert [record.reason for record in caplog.records] == ["the vocabularies differ"]


async def test_the_same_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    network = Network()
    links = make_links(network)
    with caplog.at_level(logging.WARNING):
        links.update(["a:1"])
        await until(lambda: len(network.attempts) >= 3)
    await links.stop()
    assert len(caplog.records) == 1


async def test_one_verifier_behind_two_addresses_is_served_once() -> None:
    network = Network({"a:1": SomeVerifier("a"), "b:1": SomeVerifier("a")})
    links = make_links(network)
    links.update(["a:1", "b:1"])
    await until(lambda: len(network.attempts) == 2)
    await asyncio.sleep(0.05)
    assert len(links.connected_addresses) == 1
    await links.stop()


async def test_addresses_that_are_gone_are_given_up_unless_their_stream_is_up() -> None:
    network = Network({"up:1": SomeVerifier("up")})
    links = make_links(network)
    links.update(["up:1", "down:1"])
    await until(lambda: links.connected_addresses == {"up:1"} and "down:1" in network.attempts)
    links.update([])
    await asyncio.sleep(0.3)
    num_attempts = network.attempts.count("down:1")
    await asyncio.sleep(0.5)
    assert network.attempts.count("down:1") == num_attempts
    assert links.connected_addresses == {"up:1"}
    await links.stop()


def test_pauses_grow_with_jitter_up_to_a_second() -> None:
    backoff = Backoff(generator=random.Random(1))
    pauses = [backoff.next_pause_s() for _ in range(12)]
    for place, pause in enumerate(pauses):
        longest = min(1.0, 0.1 * 2**place)
        assert longest / 2 <= pause <= longest
    backoff.reset()
    assert backoff.next_pause_s() <= 0.1
