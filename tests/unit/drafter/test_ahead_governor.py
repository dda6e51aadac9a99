"""When idle time is spent on drafting ahead: by the setting, within the bound on waste, where cycles get shorter."""

from __future__ import annotations

import random

import pytest

from specgrove_drafter.ahead_governor import BLOCK_CYCLES, MAX_CYCLE_S, AheadGovernor, AheadMode, CycleTrial, WasteMeter
from specgrove_drafter.jobs import SessionRef


def share_on(trial: CycleTrial, num_cycles: int, on_s: float, off_s: float, *, noise: float = 0.15) -> float:
    """The share of cycles that were run with drafting ahead, when cycles take so long with and without."""
    generator = random.Random(2)
    num_on = 0
    for _ in range(num_cycles):
        num_on += trial.is_on
        trial.observe((on_s if trial.is_on else off_s) * generator.lognormvariate(0.0, noise))
    return num_on / num_cycles


def test_it_stays_on_where_it_shortens_the_cycle() -> None:
    assert share_on(CycleTrial(), 4000, on_s=0.054, off_s=0.06) > 0.75


@pytest.mark.parametrize("on_s", [0.06, 0.066, 0.1])
def test_it_stays_off_where_it_lengthens_the_cycle_or_changes_nothing(on_s: float) -> None:
    assert share_on(CycleTrial(), 4000, on_s=on_s, off_s=0.06, noise=0.05) < 0.2


def test_it_follows_when_the_machine_changes() -> None:
    trial = CycleTrial()
    share_on(trial, 3000, on_s=0.05, off_s=0.06)
    assert share_on(trial, 4000, on_s=0.09, off_s=0.06) < 0.4
    assert share_on(trial, 4000, on_s=0.05, off_s=0.06) > 0.6


def test_a_slow_change_of_load_is_not_taken_for_a_gain() -> None:
    trial, generator = CycleTrial(), random.Random(4)
    num_on = 0
    for at in range(6000):
        num_on += trial.is_on
        trial.observe(0.06 * (1 + at / 3000) * generator.lognormvariate(0.0, 0.05))
    assert num_on / 6000 < 0.25


def test_cycles_that_tell_of_something_else_are_left_out() -> None:
    trial = CycleTrial()
    for _ in range(10 * BLOCK_CYCLES):
        trial.observe(MAX_CYCLE_S * 2)
        trial.observe(0.0)
        trial.observe(-1.0)
    assert trial.num_blocks == 0


def test_it_begins_without_and_probes_soon() -> None:
    trial = CycleTrial()
    assert not trial.is_on
    for _ in range(BLOCK_CYCLES):
        trial.observe(0.05)
    assert trial.is_on


def test_the_bound_on_waste_pauses_it_and_useful_work_lets_it_go_on() -> None:
    governor = AheadGovernor(AheadMode.ON, max_waste_share=0.5)
    assert governor.is_open
    governor.waste.observe(100, num_wasted=60)
    assert not governor.is_open
    governor.waste.observe(40)
    assert governor.is_open


def test_a_few_wasted_forwards_prove_nothing() -> None:
    meter = WasteMeter()
    meter.observe(3, num_wasted=3)
    assert meter.share < 0.1


def test_old_waste_fades() -> None:
    meter = WasteMeter()
    meter.observe(1000, num_wasted=1000)
    for _ in range(3000):
        meter.observe(1)
    assert meter.share < 0.05


def test_off_is_off() -> None:
    assert not AheadGovernor(AheadMode.OFF, max_waste_share=1.0).is_open


def test_only_cycles_within_one_block_count() -> None:
    now = 0.0

    def clock() -> float:
        return now

    governor = AheadGovernor(AheadMode.AUTO, max_waste_share=1.0, clock=clock)
    session, other = SessionRef(1, 1), SessionRef(1, 2)
    governor.draft_sent(other)
    for _ in range(BLOCK_CYCLES + 1):  # the first draft begins a cycle
        governor.draft_sent(session)
        now += 0.05
    assert governor.trial.num_blocks == 1
    assert governor.is_open
    governor.draft_sent(other)  # a cycle that began in the block before
    assert governor.trial._cycles == []


def test_sessions_that_ended_leave_nothing() -> None:
    governor = AheadGovernor(AheadMode.AUTO, max_waste_share=1.0)
    for key in range(100):
        governor.draft_sent(SessionRef(1, key))
        governor.forget(SessionRef(1, key))
    assert governor._sent == {}
