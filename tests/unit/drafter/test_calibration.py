"""Calibration: starts as the identity, learns a member's bias from what came true, and stays bounded whatever comes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pytest

from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.tree import TokenTree
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.jobs import Budget
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.calibration import MAX_OFFSET, MAX_TRIALS, Calibration, CalibrationTable, labelled
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal, as_estimated
from specgrove_drafter.trees.sent_draft import SentDraft, VerifiedDraft
from support.drafter_fakes import ScriptedMember, TableModel, chain_proposal, make_job

SAMPLED = SamplingParams(temperature=0.8, seed=1)


def log_odds(prob: float) -> float:
    return math.log(prob / (1 - prob))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_a_table_starts_as_the_identity() -> None:
    table = CalibrationTable()
    for prob in (0.001, 0.2, 0.5, 0.9, 0.999):
        assert math.exp(table.calibrated(math.log(prob))) == pytest.approx(prob, rel=0.01)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("too sure", lambda truth: sigmoid(2.0 * log_odds(truth))),
        ("too shy", lambda truth: sigmoid(0.5 * log_odds(truth))),
        ("too hopeful", lambda truth: sigmoid(log_odds(truth) + 1.5)),
        ("honest", lambda truth: truth),
    ],
)
def test_calibrated_estimates_come_true_as_often_as_they_say(name: str, said: Callable[[float], float]) -> None:
    generator = random.Random(name)
    table = CalibrationTable()

    def draw() -> tuple[float, bool]:
        truth = generator.betavariate(0.6, 1.4)
        truth = min(max(truth, 0.002), 0.995)
        return math.log(said(truth)), generator.random() < truth

    for _ in range(6000):
        table.observe(*draw())
    sums, hits = [0.0] * 10, [0.0] * 10
    num_checked = 20000
    for _ in range(num_checked):
        log_prob, is_hit = draw()
        prob = math.exp(table.calibrated(log_prob))
        sums[min(int(prob * 10), 9)] += prob
        hits[min(int(prob * 10), 9)] += is_hit
    error = sum(abs(one - other) for one, other in zip(sums, hits, strict=True)) / num_checked
    assert error < 0.03


def test_a_larger_estimate_never_maps_to_a_smaller_one() -> None:
    generator = random.Random(3)
    table = CalibrationTable()
    for _ in range(3000):  # the likelier the estimate the rarer it comes true: order must hold all the same
        prob = generator.random() * 0.98 + 0.01
        table.observe(math.log(prob), generator.random() < 1 - prob)
    mapped = [table.calibrated(math.log(step / 200)) for step in range(1, 200)]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(mapped))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 5.0, -1e300, 0.0])
def test_garbage_stays_bounded(garbage: float) -> None:
    table = CalibrationTable()
    for _ in range(5000):
        table.observe(garbage, True)
        table.observe(garbage, False)
    for log_prob in (garbage, math.log(0.3), -50.0, 0.0):
        assert math.isfinite(table.calibrated(log_prob))
        assert table.calibrated(log_prob) <= 0.0
    assert max(table.trials) <= MAX_TRIALS


def test_no_evidence_moves_an_estimate_by_more_than_the_bound() -> None:
    table = CalibrationTable()
    for _ in range(100_000):
        table.observe(math.log(0.5), False)
    assert log_odds(math.exp(table.calibrated(math.log(0.5)))) >= -MAX_OFFSET - 1e-6


def test_old_evidence_fades() -> None:
    table = CalibrationTable()
    for _ in range(20_000):
        table.observe(math.log(0.5), True)
    for _ in range(6_000):
        table.observe(math.log(0.5), False)
    assert math.exp(table.calibrated(math.log(0.5))) < 0.2


def test_only_nodes_whose_parent_was_reached_are_evidence() -> None:
    proposal = Proposal()
    a = proposal.add(BELOW_ROOT, 4, -0.5)
    b = proposal.add(BELOW_ROOT, 5, -1.5)
    under_a = proposal.add(a, 6, -0.5)
    proposal.add(b, 7, -0.5)  # b was not reached
    deeper = proposal.add(under_a, 8, -0.5)
    assert dict(labelled(proposal, [4, 6, 9])) == {a: True, b: False, under_a: True, deeper: False}
    assert dict(labelled(proposal, [1])) == {a: False, b: False}


def test_members_depths_and_kinds_of_session_are_kept_apart() -> None:
    calibration = Calibration()
    greedy, sampled = make_job(), make_job(sampling=SAMPLED)
    for _ in range(500):
        calibration.learn(0, greedy, chain_proposal([(4,)], 0.5), [9])
    assert calibration.scale(0, greedy)(1, math.log(0.5)) < math.log(0.1)
    for untouched in (
        calibration.scale(1, greedy)(1, math.log(0.5)),
        calibration.scale(0, greedy)(2, math.log(0.5)),
        calibration.scale(0, sampled)(1, math.log(0.5)),
        calibration.scale(0, replace(sampled, rule=Rule.NAIVE))(1, math.log(0.5)),
    ):
        assert untouched == pytest.approx(math.log(0.5))


def test_drawn_children_are_neither_learned_from_nor_mapped() -> None:
    calibration = Calibration()
    job = replace(make_job(sampling=SAMPLED), rule=Rule.MSS)
    calibration.learn(0, job, chain_proposal([(4,)], 0.5), [9])
    assert calibration.tables == {}
    assert calibration.scale(0, job) is as_estimated


def test_the_error_tells_how_far_estimates_are_off_and_falls_as_they_mend() -> None:
    calibration = Calibration()
    job = make_job()
    generator = random.Random(1)

    def round_of_drafts(count: int) -> None:
        for _ in range(count):
            proposal = chain_proposal([(4,)], 0.9).scaled(calibration.scale(0, job))
            calibration.learn(0, job, proposal, [4 if generator.random() < 0.3 else 9])

    round_of_drafts(20)
    assert calibration.error(0) > 0.3
    round_of_drafts(8000)
    assert calibration.error(0) < 0.03
    assert calibration.error(7) == 0.0


@dataclass(slots=True)
class Process:
    """A target that takes the SSM's first child with 0.45 and its second with 0.35, whatever the SSM says."""

    generator: random.Random

    def walk(self, tree: TokenTree) -> tuple[int, ...]:
        """The accepted tokens and one more."""
        path: tuple[int, ...] = ()
        while path == () or path in tree.paths():
            path = (*path, self.generator.choices([1, 2, 3], [0.45, 0.35, 0.2])[0])
        return path


def mean_accepted(ensemble: Ensemble, process: Process, *, num_steps: int, is_learning: bool) -> float:
    job, num_accepted = make_job((1, 1, 1), budget=Budget(4, 4)), 0
    for _ in range(num_steps):
        [draft] = ensemble.draft([job])
        committed = process.walk(draft.tree)
        num_accepted += len(committed) - 1
        if is_learning:
            ensemble.learn(VerifiedDraft(SentDraft(job, draft.tree, draft.proposals), committed))
    return num_accepted / num_steps


def test_trees_of_an_ssm_that_is_too_sure_get_better() -> None:
    law = {1: 0.85, 2: 0.1, 3: 0.01}
    calibration = Calibration()
    policy = BestFirstPolicy(BestFirst(min_path_prob=0.05))
    member = SsmMember("ssm", TableModel(dict.fromkeys((1, 2, 3), law)), policy, partial(calibration.scale, 0))
    ensemble = Ensemble([member], calibration)
    process = Process(random.Random(7))
    before = mean_accepted(ensemble, process, num_steps=1000, is_learning=False)
    mean_accepted(ensemble, process, num_steps=500, is_learning=True)
    after = mean_accepted(ensemble, process, num_steps=1000, is_learning=False)
    assert before < 0.9  # a chain: 0.45 + 0.2 + 0.09 + 0.04
    assert after > 1.05  # two at the root, two below the likelier: 0.45 + 0.35 + 0.2 + 0.16


def test_a_cheap_member_that_boasts_loses_its_place() -> None:
    boaster = ScriptedMember("boaster", [(7,), (8,), (9,)], prob=0.95)
    honest = ScriptedMember("honest", [(1,), (2,), (3,)], prob=0.3)
    ensemble = Ensemble([boaster, honest])
    process = Process(random.Random(7))
    job = make_job(budget=Budget(3, 4))
    assert ensemble.draft([job])[0].tree.paths() == {(), (7,), (8,), (9,)}
    for _ in range(100):
        [draft] = ensemble.draft([job])
        ensemble.learn(VerifiedDraft(SentDraft(job, draft.tree, draft.proposals), process.walk(draft.tree)))
    assert ensemble.draft([job])[0].tree.paths() == {(), (1,), (2,), (3,)}
