"""The walk of rule `mss`: which draws are tried, in which order, against which law."""

from __future__ import annotations

import pytest
import torch

from specgrove.draft import ChildLaw
from specgrove.sampling.mss import ChildTrials, MssNoise, verify_mss
from specgrove.sampling.noise import NoiseRows, Stream, gumbel_row, uniform
from specgrove.sampling.verification import Verdict
from specgrove.tree import TokenTree

VOCAB_SIZE = 4
GOLDEN = [0.5786435779882595, 0.8414752840762958, 0.721333920606412]
CERTAIN_1 = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
CERTAIN_3 = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)


def _noise(seed: int = 7) -> MssNoise:
    return MssNoise(seed, NoiseRows(seed, VOCAB_SIZE, stream=Stream.OWN))


def _tensor(*probs: float) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64)


def test_the_chances_and_the_residual_are_those_of_the_paper() -> None:
    target = _tensor(0.5, 0.3, 0.2, 0.0)
    law = ChildLaw(0, (1, 2), (0.6, 0.4), (1, 2))
    trials = ChildTrials(target, [law], [9, 1, 2])
    in_turn = iter(trials)
    first = next(in_turn)
    assert (first.node, first.acceptance) == (1, pytest.approx(0.5))
    second = next(in_turn)
    # The first was rejected: max(0, target - law) is (0.5, 0, 0, 0), and what is left of the law is token 2 alone.
    assert trials.residual.tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert (second.node, second.acceptance) == (2, pytest.approx(0.0))
    assert next(in_turn, None) is None
    assert trials.residual.tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])


def test_a_second_law_starts_from_its_own_first_draw() -> None:
    target = _tensor(0.25, 0.25, 0.25, 0.25)
    laws = [ChildLaw(0, (0, 1), (0.5, 0.5), (1,)), ChildLaw(0, (2, 1), (0.5, 0.5), (2,))]
    chances = [trial.acceptance for trial in ChildTrials(target, laws, [9, 0, 2])]
    assert chances == [pytest.approx(0.5), pytest.approx(1.0)]


def test_a_whole_path_that_is_certain_is_taken_and_a_leaf_draws_from_the_targets_law() -> None:
    tree = TokenTree((9, 1, 3), (-1, 0, 1))
    laws = (ChildLaw(0, (1,), (1.0,), (1,)), ChildLaw(1, (3, 2), (0.5, 0.5), (2,)))
    path = {0: CERTAIN_1, 1: CERTAIN_3, 2: CERTAIN_1}
    assert verify_mss(tree, laws, 5, path.__getitem__, _noise()) == Verdict((1, 2), 1, is_bonus=True)


def test_a_child_without_a_chance_is_never_taken() -> None:
    tree = TokenTree((9, 0, 2), (-1, 0, 0))
    laws = (ChildLaw(0, (0, 1, 2), (0.4, 0.2, 0.4), (2, 1)),)
    for position in range(50):
        assert verify_mss(tree, laws, position, lambda node: CERTAIN_3, _noise()) == Verdict((), 3, is_bonus=False)


def test_laws_are_asked_for_the_path_alone() -> None:
    tree = TokenTree((9, 1, 2, 0), (-1, 0, 0, 2))
    laws = (ChildLaw(0, (1, 2), (0.5, 0.5), (1, 2)), ChildLaw(2, (0,), (1.0,), (3,)))
    asked: list[int] = []

    def law_after(node: int) -> torch.Tensor:
        asked.append(node)
        return CERTAIN_1

    verify_mss(tree, laws, 3, law_after, _noise())
    assert asked == [0, 1]


def test_the_same_seed_and_position_decide_alike_and_others_do_not() -> None:
    tree = TokenTree((9, 0, 1, 2), (-1, 0, 0, 0))
    laws = (ChildLaw(0, (0, 1, 2, 3), (0.25,) * 4, (1, 2, 3)),)
    target = _tensor(0.1, 0.2, 0.3, 0.4)

    def verdicts(seed: int) -> list[Verdict]:
        return [verify_mss(tree, laws, position, lambda node: target, _noise(seed)) for position in range(40)]

    assert verdicts(7) == verdicts(7)
    assert verdicts(7) != verdicts(8)
    assert len(set(verdicts(7))) > 3


def test_the_streams_of_a_seed_have_nothing_to_do_with_one_another() -> None:
    rows = {tuple(gumbel_row(5, 3, 8, stream=stream).tolist()) for stream in Stream}
    assert len(rows) == len(Stream)
    assert torch.equal(gumbel_row(5, 3, 8), gumbel_row(5, 3, 8, stream=Stream.SHARED))


def test_uniform_values_are_inside_the_interval_and_differ_by_number_position_and_seed() -> None:
    values = {
        uniform(seed, position, number, Stream.TRIALS)
        for seed in (0, 2**64 - 1)
        for position in (0, 7, 2**33)
        for number in range(20)
    }
    assert len(values) == 120
    assert all(0.0 < value < 1.0 for value in values)


def test_uniform_values_have_their_golden_ones() -> None:
    """A change here changes every sampled answer under rule `mss`."""
    assert [uniform(1, 17, number, Stream.TRIALS) for number in range(3)] == GOLDEN
