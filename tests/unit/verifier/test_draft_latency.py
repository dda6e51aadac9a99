"""Draft latency by the number of sessions: known sizes by what was seen, others guessed on the dear side."""

from __future__ import annotations

import pytest

from specgrove_verifier.draft_latency import DraftLatency


def test_nothing_is_expected_before_anything_was_seen() -> None:
    assert DraftLatency().expected_s(4) == 0.0


def test_each_size_has_its_own_latency() -> None:
    latency = DraftLatency()
    for _ in range(100):
        latency.observe(1, 0.005)
        latency.observe(4, 0.012)
    assert latency.expected_s(1) == pytest.approx(0.005)
    assert latency.expected_s(4) == pytest.approx(0.012)
    assert latency.expected_s(7) == pytest.approx(0.012), "4 to 7 are one size"


def test_more_sessions_than_were_ever_seen_take_longer_in_proportion_and_fewer_no_longer() -> None:
    latency = DraftLatency()
    latency.observe(2, 0.006)
    assert latency.expected_s(8) == pytest.approx(0.024)
    assert latency.expected_s(1) == pytest.approx(0.006)


def test_it_follows_what_is_seen() -> None:
    latency = DraftLatency()
    latency.observe(1, 0.005)
    for _ in range(60):
        latency.observe(1, 0.010)
    assert latency.expected_s(1) == pytest.approx(0.010, rel=0.01)
