"""The budget grants what commits most tokens per second, and nothing where speculation loses."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgrove_verifier.acceptance_curve import AcceptanceCurve
from specgrove_verifier.budget import FixedBudget, MeasuredBudget
from specgrove_verifier.cost_curve import CostCurve, CurveStore
from specgrove_verifier.mailbox import NO_DRAFT, DraftBudget

LIMITS = DraftBudget(8, 5)
FLAT = [(1, 0.040), (8, 0.042), (64, 0.050)]  # rows are nearly free
STEEP = [(1, 0.010), (2, 0.020), (64, 0.640)]  # every row costs what the first one cost


def test_nearly_free_rows_are_used_to_the_limit() -> None:
    assert MeasuredBudget(LIMITS, CostCurve(FLAT)).grant(1, 0.0) == LIMITS


def test_rows_at_full_price_switch_speculation_off() -> None:
    budget = MeasuredBudget(LIMITS, CostCurve(STEEP))
    assert budget.grant(1, 0.0) == NO_DRAFT
    assert budget.grant(8, 0.0) == NO_DRAFT


def test_a_draft_that_takes_longer_than_it_saves_switches_speculation_off() -> None:
    assert MeasuredBudget(LIMITS, CostCurve(FLAT)).grant(1, 0.5) == NO_DRAFT


def test_rejected_trees_shrink_the_grant_and_accepted_ones_bring_it_back() -> None:
    budget = MeasuredBudget(LIMITS, CostCurve([(1, 0.030), (8, 0.045), (64, 0.3)]))
    assert budget.grant(1, 0.005).max_nodes > 0
    for _ in range(400):
        budget.observe_answer(8, 8, [])
    assert budget.grant(1, 0.005) == NO_DRAFT
    for _ in range(400):
        budget.observe_answer(8, 8, [1, 2])
    assert budget.grant(1, 0.005).max_nodes > 0


def test_answers_without_a_tree_count_against_speculation() -> None:
    """A drafter that has something to say in every tenth step only is right then, and still not worth its wait."""
    budget = MeasuredBudget(LIMITS, CostCurve([(1, 0.030), (8, 0.045), (64, 0.3)]))
    for step in range(600):
        budget.observe_answer(8, *((8, [1, 2, 3]) if step % 10 == 0 else (0, [])))
    assert budget.grant(1, 0.012) == NO_DRAFT
    assert budget.grant(1, 0.0).max_nodes > 0, "an empty answer costs no rows"


def test_a_grant_is_expected_to_bring_as_many_nodes_as_came_lately() -> None:
    curve = AcceptanceCurve()
    assert curve.expected_nodes(8) == 8
    for step in range(1200):
        curve.observe(8, *((4, [1]) if step % 2 else (2, [1])))
    assert curve.expected_nodes(2) == pytest.approx(2.0)
    assert curve.expected_nodes(8) == pytest.approx(3.0, abs=0.2)
    assert curve.expected(8) == pytest.approx(1.0, abs=0.1)


def test_while_it_is_off_trees_are_tried_now_and_then_at_little_cost() -> None:
    curve = CostCurve(STEEP)
    budget = MeasuredBudget(LIMITS, curve)
    grants = [budget.grant(1, 0.0).max_nodes for _ in range(2000)]
    num_tried = sum(nodes > 0 for nodes in grants)
    assert num_tried > 6
    lost_s = sum(curve.seconds(1 + nodes) - curve.seconds(1) for nodes in grants)
    assert lost_s < 0.035 * 2000  # what they bring not counted * curve.seconds(1)


def test_steps_that_take_longer_than_the_curve_says_move_it() -> None:
    curve = CostCurve(FLAT)
    for _ in range(200):
        curve.observe(1, 0.080)
    assert curve.seconds(1) == pytest.approx(0.080, rel=0.01)
    assert curve.seconds(8) > 0.042


def test_a_curve_measured_in_a_bad_moment_heals_and_trees_come_back() -> None:
    truth = CostCurve([(1, 0.040), (2, 0.044), (4, 0.046), (6, 0.047), (8, 0.055), (64, 0.2)])
    budget = MeasuredBudget(LIMITS, CostCurve([(1, 0.052), (2, 0.180), (4, 0.286), (6, 0.286), (8, 0.3), (64, 0.9)]))
    granted = []
    for _ in range(1300):
        nodes = budget.grant(1, 0.010).max_nodes
        granted.append(nodes)
        budget.observe_step(1 + nodes, truth.seconds(1 + nodes))
        if nodes:
            budget.observe_answer(nodes, nodes, [1])
    assert sum(granted[:50]) < 50
    assert sum(nodes > 0 for nodes in granted[-500:]) > 400, "plain steps are probes"


def test_the_curve_takes_the_least_of_its_measurements_and_never_falls() -> None:
    passes = [[5.0, 0.5, 2.0], [1.0, 0.5, 2.0], [5.0, 9.0, 2.0], [5.0, 0.5, 9.0], [5.0, 0.5, 2.0]]
    times = iter([9.0, *(seconds for one in passes for seconds in one)])
    curve = CostCurve.measure(lambda rows: next(times), max_rows=4)
    assert [curve.seconds(rows) for rows in (1, 2, 4)] == [1.0, 1.0, 2.0]


def test_a_fixed_budget_is_the_limits_whatever_it_costs() -> None:
    budget = FixedBudget(LIMITS)
    budget.observe_answer(8, 8, [])
    assert budget.grant(64, 10.0) == LIMITS


def test_a_curve_is_kept_on_disk_and_taken_up_at_the_speed_of_the_day(tmp_path: Path) -> None:
    store, made_on = CurveStore(tmp_path / "curves"), ["this cpu", 2, "model"]
    assert store.load(made_on) is None
    store.save(made_on, CostCurve([(1, 0.5), (4, 0.75)]))
    points = store.load(made_on)
    assert points == [(1, 0.5), (4, 0.75)]
    assert store.load(["another cpu", 2, "model"]) is None
    sizes: list[int] = []
    curve = CostCurve.resumed(points, lambda rows: sizes.append(rows) or {1: 1.0, 4: 1.6}[rows])  # type: ignore[func-returns-value]
    assert curve is not None
    assert set(sizes) == {1, 4}
    assert [curve.seconds(rows) for rows in (1, 4)] == [1.0, 1.5]


def test_points_of_a_bad_moment_are_not_taken_up() -> None:
    assert CostCurve.resumed([(1, 0.5), (4, 3.0)], lambda rows: {1: 0.5, 4: 0.75}[rows]) is None


def test_grants_stay_within_the_room_of_a_step() -> None:
    assert MeasuredBudget(LIMITS, CostCurve(FLAT)).grant(1, 0.0, 3).max_nodes == 3
    assert FixedBudget(LIMITS).grant(1, 0.0, 3).max_nodes == 3


@pytest.mark.parametrize("content", ["", "{}", '{"points": []}', '{"points": [[1, "x"]]}', '{"points": [[1, -1.0]]}'])
def test_a_broken_file_is_no_curve(tmp_path: Path, content: str) -> None:
    store = CurveStore(tmp_path)
    store.save(["a"], CostCurve([(1, 0.5)]))
    [path] = tmp_path.iterdir()
    path.write_text(content)
    assert store.load(["a"]) is None


def test_a_folder_that_cannot_be_written_only_means_measuring_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = CurveStore(tmp_path / "file" / "below")
    store.save(["a"], CostCurve([(1, 0.5)]))
    assert store.load(["a"]) is None
