"""The budget controller against simulated targets whose best budget is known: within 5%, and without flutter."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from specgrove_verifier.account import Pacing, Plan
from specgrove_verifier.budget import MeasuredBudget, turn_size
from specgrove_verifier.cost_curve import MEASURED_ROWS, CostCurve
from specgrove_verifier.mailbox import NO_DRAFT, DraftBudget

LIMITS = DraftBudget(32, 8)
GENEROUS = tuple(0.7 * 0.85**node for node in range(64))  # P(node n is accepted), likeliest first
USUAL = tuple(0.45 * 0.72**node for node in range(64))
POOR = tuple(0.06 * 0.6**node for node in range(64))


@dataclass
class World:
    """Steps with a true cost and true acceptance, and time that only they take."""

    step_s: dict[int, float]  # by rows, straight lines between
    rates: tuple[float, ...]
    draft_s: float
    num_sessions: int = 1
    noise: float = 0.0
    now_s: float = 0.0
    coming: int = 0  # a grant is for the trees of the step after the next
    random: Random = field(default_factory=lambda: Random(1))

    def __post_init__(self) -> None:
        self.truth = CostCurve(list(self.step_s.items()))

    def cost_s(self, nodes: int) -> float:
        return self.truth.seconds(self.num_sessions * (1 + nodes)) + (self.draft_s if nodes else 0.0)

    def rate(self, nodes: int) -> float:
        return self.num_sessions * (1 + sum(self.rates[:nodes])) / self.cost_s(nodes)

    def best(self) -> float:
        return max(self.rate(nodes) for nodes in range(LIMITS.max_nodes + 1))

    def run(self, budget: MeasuredBudget, steps: int) -> list[int]:
        """The grants of so many steps."""
        granted = []
        for _ in range(steps):
            nodes, self.coming = self.coming, budget.grant(self.num_sessions, self.draft_s).max_nodes
            granted.append(nodes)
            noise = 1.0 + self.noise * self.random.random()
            self.now_s += noise * self.cost_s(nodes)
            wait_s = self.draft_s if nodes else 0.0
            budget.observe_step(self.num_sessions * (1 + nodes), noise * (self.cost_s(nodes) - wait_s))
            for _ in range(self.num_sessions):
                accepted = [n for n in range(1, nodes + 1) if self.random.random() < self.rates[n - 1]]
                if nodes:
                    budget.observe_answer(nodes, nodes, accepted)
                budget.observe_tokens(1 + len(accepted))
        return granted

    def budget(self) -> MeasuredBudget:
        curve = CostCurve([(rows, self.truth.seconds(rows)) for rows in MEASURED_ROWS])
        return MeasuredBudget(LIMITS, curve, clock=lambda: self.now_s)


# Seconds by rows.
CPU = {1: 0.034, 6: 0.046, 12: 0.057, 64: 0.19}
GPU = {1: 0.020, 64: 0.021, 256: 0.030, 1024: 0.08}
LARGE = {1: 0.030, 32: 0.034, 256: 0.12, 1024: 0.45}
STEEP = {1: 0.010, 2: 0.020, 1024: 10.24}


@pytest.mark.parametrize("num_sessions", [1, 4, 16])
@pytest.mark.parametrize("draft_s", [0.0, 0.012, 0.06])
@pytest.mark.parametrize("rates", [GENEROUS, USUAL, POOR], ids=["generous", "usual", "poor"])
@pytest.mark.parametrize("step_s", [CPU, GPU, STEEP], ids=["cpu", "gpu", "steep"])
def test_what_is_granted_comes_within_five_per_cent_of_the_best(
    step_s: dict[int, float], rates: tuple[float, ...], draft_s: float, num_sessions: int
) -> None:
    world = World(step_s, rates, draft_s, num_sessions)
    budget = world.budget()
    world.run(budget, 700)
    granted = world.run(budget, 300)
    num_tokens = sum(num_sessions * (1 + sum(rates[:nodes])) for nodes in granted)
    seconds = sum(world.cost_s(nodes) for nodes in granted)
    assert num_tokens / seconds > 0.95 * world.best()


def test_it_does_not_flutter_where_two_budgets_are_worth_the_same() -> None:
    """Speculation is worth as much as plain decoding here, and steps are noisy."""
    world = World(CPU, USUAL, 0.0, noise=0.3)
    world.draft_s = next(
        s / 1000 for s in range(500) if World(CPU, USUAL, s / 1000).best() == World(CPU, USUAL, 0).rate(0)
    )
    budget = world.budget()
    world.run(budget, 300)
    granted = world.run(budget, 1000)
    num_switches = sum((one > 0) != (other > 0) for one, other in pairwise(granted))
    assert num_switches <= 100  # probes go there and back, and cost nothing here


def test_it_turns_off_where_speculation_loses_and_on_again_when_times_change() -> None:
    world = World(CPU, POOR, 0.02)
    budget = world.budget()
    world.run(budget, 300)
    assert sum(nodes > 0 for nodes in world.run(budget, 320)) <= 16
    world.rates = GENEROUS
    world.run(budget, 600)
    assert sum(nodes > 0 for nodes in world.run(budget, 100)) >= 90


def test_what_was_expected_is_what_is_seen_where_the_model_holds() -> None:
    world = World(CPU, USUAL, 0.012)
    budget = world.budget()
    world.run(budget, 1500)
    account = budget.account
    assert account.observed_tokens_per_s == pytest.approx(world.best(), rel=0.12)
    assert account.error < 0.1
    assert sum(nodes > 0 for nodes in world.run(budget, 50)) > 40


def test_what_a_step_does_besides_its_forward_is_learned() -> None:
    """Every step comes to take 50 ms more than its forward."""
    world = World(CPU, USUAL, 0.012)
    budget = world.budget()
    world.run(budget, 600)
    for _ in range(10):
        world.run(budget, 1)
        world.now_s += 0.05
    assert budget.account.error > 0.05
    for _ in range(600):
        world.run(budget, 1)
        world.now_s += 0.05
    assert budget.account.error < 0.1


def test_a_probe_that_costs_more_than_was_expected_is_paid_for() -> None:
    """Drafts that take ten times what the latency says, as where sessions are read before they are drafted for."""
    world = World(STEEP, POOR, 0.0)
    budget = world.budget()
    world.run(budget, 300)
    began_s, lost_s = world.now_s, 0.0
    for _ in range(2000):
        coming = world.coming
        world.run(budget, 1)
        if coming:
            world.now_s += 0.04
            lost_s += world.cost_s(coming) - world.cost_s(0) + 0.04
    assert 0 < lost_s < 0.03 * (world.now_s - began_s)


def test_trees_that_never_come_teach_nothing_about_what_trees_cost() -> None:
    """All clients switch speculation off, or the drafter says nothing: cycles of plain length under granted nodes."""
    world = World(CPU, USUAL, 0.012)
    budget = world.budget()
    world.run(budget, 400)
    known = [budget.account.slowdown(Plan(nodes), 1) for nodes in (0, 4)]
    for _ in range(200):
        budget.grant(1, 0.012)
        world.now_s += world.cost_s(0)
        budget.observe_step(1, world.cost_s(0))
        budget.observe_tokens(1)
    assert [budget.account.slowdown(Plan(nodes), 1) for nodes in (0, 4)] == pytest.approx(known, rel=0.02)
    assert sum(nodes > 0 for nodes in world.run(budget, 100)) >= 90


def test_sessions_that_want_no_drafts_count_as_rows_and_tokens_only() -> None:
    """One session of eight may be drafted for: its nodes cost as little as if it were alone, on a flat curve."""
    budget = MeasuredBudget(LIMITS, CostCurve(list(GPU.items())))
    assert budget.grant(1, 0.0, num_plain=7).max_nodes > 0
    assert budget.grant(0, 0.0, num_plain=8) == NO_DRAFT
    steep = MeasuredBudget(LIMITS, CostCurve(list(STEEP.items())))
    assert steep.grant(1, 0.0, num_plain=7) == NO_DRAFT


@dataclass
class PacedWorld:
    """As `World`, for sessions that may go in turns; `contention` is what drafts on the same cores add to a turn."""

    draft_s: float
    contention: float = 1.0
    num_sessions: int = 8
    rates: tuple[float, ...] = GENEROUS
    now_s: float = 0.0
    random: Random = field(default_factory=lambda: Random(1))

    def __post_init__(self) -> None:
        self.truth = CostCurve(list(LARGE.items()))

    def turn(self, nodes: int, pacing: Pacing) -> tuple[int, float]:
        """Sessions in a step, and the seconds from one step to the next."""
        if not nodes or pacing is Pacing.TOGETHER or self.num_sessions == 1:
            wait_s = self.draft_s if nodes else 0.0
            return self.num_sessions, self.truth.seconds(self.num_sessions * (1 + nodes)) + wait_s
        size = turn_size(self.num_sessions)
        step_s = self.truth.seconds(size * (1 + nodes))
        return size, self.contention * max(step_s, (step_s + self.draft_s) / 2)

    def rate(self, nodes: int, pacing: Pacing) -> float:
        size, seconds = self.turn(nodes, pacing)
        return size * (1 + sum(self.rates[:nodes])) / seconds

    def best(self) -> float:
        return max(self.rate(nodes, pacing) for nodes in range(LIMITS.max_nodes + 1) for pacing in Pacing)

    def run(self, budget: MeasuredBudget, steps: int) -> list[tuple[int, Pacing]]:
        """The grants and pacings of so many steps."""
        chosen = []
        coming = (0, Pacing.TOGETHER)
        for _ in range(steps):
            (nodes, pacing), coming = coming, (budget.grant(self.num_sessions, self.draft_s).max_nodes, budget.pacing)
            chosen.append((nodes, pacing))
            size, seconds = self.turn(nodes, pacing)
            self.now_s += seconds
            budget.observe_step(size * (1 + nodes), self.truth.seconds(size * (1 + nodes)))
            for _ in range(size):
                accepted = [n for n in range(1, nodes + 1) if self.random.random() < self.rates[n - 1]]
                if nodes:
                    budget.observe_answer(nodes, nodes, accepted)
                budget.observe_tokens(1 + len(accepted))
        return chosen

    def budget(self, pacings: tuple[Pacing, ...] = tuple(Pacing)) -> MeasuredBudget:
        curve = CostCurve([(rows, self.truth.seconds(rows)) for rows in MEASURED_ROWS])
        return MeasuredBudget(LIMITS, curve, clock=lambda: self.now_s, pacings=pacings)


@pytest.mark.parametrize("num_sessions", [1, 2, 8, 32])
@pytest.mark.parametrize("contention", [1.0, 1.25, 2.5])
@pytest.mark.parametrize("draft_s", [0.002, 0.04, 0.12])
def test_the_pacing_comes_within_five_per_cent_of_the_best(
    draft_s: float, contention: float, num_sessions: int
) -> None:
    world = PacedWorld(draft_s, contention if num_sessions > 1 else 1.0, num_sessions)
    budget = world.budget()
    world.run(budget, 1200)
    chosen = world.run(budget, 400)
    turns = [world.turn(nodes, pacing) for nodes, pacing in chosen]
    num_tokens = sum(size * (1 + sum(GENEROUS[:nodes])) for (size, _), (nodes, _) in zip(turns, chosen, strict=True))
    assert num_tokens / sum(seconds for _, seconds in turns) > 0.95 * world.best()


def test_sessions_go_in_turns_where_drafts_take_as_long_as_half_a_step() -> None:
    world = PacedWorld(0.04)
    budget = world.budget()
    world.run(budget, 300)
    assert sum(pacing is Pacing.IN_TURNS for _, pacing in world.run(budget, 100)) > 80


def test_sessions_stay_together_where_drafts_slow_the_steps_beside_them() -> None:
    world = PacedWorld(0.04, contention=2.5)
    budget = world.budget()
    world.run(budget, 600)
    assert sum(pacing is Pacing.TOGETHER for _, pacing in world.run(budget, 200)) > 180


def test_a_pacing_that_is_set_is_kept() -> None:
    for pacing in Pacing:
        world = PacedWorld(0.02)
        assert {chosen for nodes, chosen in world.run(world.budget((pacing,)), 300)[3:] if nodes} == {pacing}
