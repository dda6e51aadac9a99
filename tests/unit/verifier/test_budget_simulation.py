"""The budget controller against simulated targets whose best budget is known: within 5%, and without flutter."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from specgrove_verifier.budget import MeasuredBudget
from specgrove_verifier.cost_curve import MEASURED_ROWS, CostCurve
from specgrove_verifier.mailbox import DraftBudget

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
    assert num_switches <= 40  # probes go there and back


def test_it_turns_off_where_speculation_loses_and_on_again_when_times_change() -> None:
    world = World(CPU, POOR, 0.02)
    budget = world.budget()
    world.run(budget, 300)
    assert sum(nodes > 0 for nodes in world.run(budget, 320)) <= 16
    world.rates = GENEROUS
    world.run(budget, 600)
    assert sum(nodes > 0 for nodes in world.run(budget, 100)) == 100


def test_what_was_expected_is_what_is_seen_where_the_model_holds() -> None:
    world = World(CPU, USUAL, 0.012)
    budget = world.budget()
    world.run(budget, 1500)
    account = budget.account
    assert account.observed_tokens_per_s == pytest.approx(world.best(), rel=0.12)
    assert account.error < 0.1
    assert account.num_nodes > 0


def test_an_error_is_seen_where_it_does_not() -> None:
    """Something else takes as long as a step each time: the verifier cannot know, but says that it is off."""
    world = World(CPU, USUAL, 0.012)
    budget = world.budget()
    for _ in range(600):
        world.run(budget, 1)
        world.now_s += 0.05
    assert budget.account.error > 0.4
