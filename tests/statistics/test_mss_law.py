"""Multi-step speculative sampling follows the target's law: every outcome enumerated, nothing sampled.

The traps are those of the paper's description; each wrong variant is written here and its error shown beside the zero
of the real code.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from specgrove.draft import ChildLaw
from specgrove.tree import ROOT
from support.mss_enumeration import (
    Draws,
    Law,
    independent,
    node_with,
    output_law,
    without_replacement,
    worst_error,
)

VOCAB_SIZE = 5
EXACT = 1e-9
NUM_PAIRS = 40


def _random_law(random: Random, *, num_zeros: int = 0) -> Law:
    weights = [random.random() ** 2 + 1e-3 for _ in range(VOCAB_SIZE)]
    for place in random.sample(range(VOCAB_SIZE), num_zeros):
        weights[place] = 0.0
    return tuple(weight / sum(weights) for weight in weights)


def _pairs(num_laws: int = 1, seed: int = 5) -> list[tuple[Law, list[Law]]]:
    """Random (target's law, draft laws): some laws do not reach every token."""
    random = Random(seed)
    return [
        (
            _random_law(random, num_zeros=number % 3),
            [_random_law(random, num_zeros=(number + which) % 2) for which in range(num_laws)],
        )
        for number in range(NUM_PAIRS)
    ]


@pytest.mark.parametrize("num_draws", [1, 2, 3])
def test_draws_without_replacement_are_exact(num_draws: int) -> None:
    for target, laws in _pairs():
        outcomes = independent(without_replacement(laws[0], num_draws))
        law, _ = output_law(target, outcomes, lambda draws, laws=laws: node_with(laws, draws))
        assert worst_error(law, target) < EXACT


@pytest.mark.parametrize("counts", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_two_laws_under_one_node_are_exact_with_and_without_shared_draws(counts: tuple[int, int]) -> None:
    for target, laws in _pairs(num_laws=2):
        outcomes = independent(*(without_replacement(law, count) for law, count in zip(laws, counts, strict=True)))
        law, _ = output_law(target, outcomes, lambda draws, laws=laws: node_with(laws, draws))
        assert worst_error(law, target) < EXACT


def test_three_laws_are_exact() -> None:
    for target, laws in _pairs(num_laws=3)[:10]:
        outcomes = independent(*(without_replacement(law, 1) for law in laws))
        law, _ = output_law(target, outcomes, lambda draws, laws=laws: node_with(laws, draws))
        assert worst_error(law, target) < EXACT


def test_point_masses_beside_a_law_are_exact() -> None:
    """A deterministic member's proposals, with a sampled member's draw that may hit the same token."""
    points: list[Law] = [tuple(float(token == chosen) for token in range(VOCAB_SIZE)) for chosen in (2, 4)]
    for target, laws in _pairs():
        together = [*points, laws[0]]
        outcomes = independent(*(without_replacement(point, 1) for point in points), without_replacement(laws[0], 2))
        law, _ = output_law(target, outcomes, lambda draws, together=together: node_with(together, draws))
        assert worst_error(law, target) < EXACT


def test_a_draft_law_that_is_the_targets_is_always_accepted() -> None:
    for target, _ in _pairs():
        law, accepted = output_law(
            target, independent(without_replacement(target, 1)), lambda draws, target=target: node_with([target], draws)
        )
        assert worst_error(law, target) < EXACT
        assert accepted == pytest.approx(1.0, abs=EXACT)


def test_more_draws_are_accepted_more_often() -> None:
    totals = [0.0, 0.0, 0.0]
    for target, laws in _pairs():
        for place, num_draws in enumerate((1, 2, 3)):
            outcomes = independent(without_replacement(laws[0], num_draws))
            totals[place] += output_law(target, outcomes, lambda draws, laws=laws: node_with(laws, draws))[1]
    assert totals[0] < totals[1] < totals[2] < NUM_PAIRS


def test_trap_the_likeliest_tokens_are_no_draws() -> None:
    """The top k with the literal formula: an error of more than a half at worst, 0.55 in the paper's experiment."""
    worst = 0.0
    for target, laws in _pairs():
        best = tuple(sorted(range(VOCAB_SIZE), key=lambda token: -laws[0][token])[:2])
        law, _ = output_law(target, [((best,), 1.0)], lambda draws, laws=laws: node_with(laws, draws))
        worst = max(worst, worst_error(law, target))
    assert worst > 0.5


def test_trap_the_original_law_for_every_draw() -> None:
    """Without replacement, but each draw tried against the law of the first."""

    def original_law(laws: Sequence[Law], draws: Sequence[Draws]) -> tuple[list[ChildLaw], list[int]]:
        [child_law], token_ids = node_with(laws, draws)
        # One law for each draw: nothing is left out of the later ones.
        return [ChildLaw(ROOT, child_law.token_ids, child_law.probs, (node,)) for node in child_law.draws], token_ids

    worst = 0.0
    for target, laws in _pairs():
        outcomes = list(independent(without_replacement(laws[0], 2)))
        law, _ = output_law(target, outcomes, lambda draws, laws=laws: original_law(laws, draws))
        worst = max(worst, worst_error(law, target))
    assert worst > 0.1


def test_trap_equal_draws_tried_once() -> None:
    """What two laws drew alike is one node; tried in one law only it is a proposal too few."""

    def tried_once(laws: Sequence[Law], draws: Sequence[Draws]) -> tuple[list[ChildLaw], list[int]]:
        child_laws, token_ids = node_with(laws, draws)
        if draws[0] == draws[1]:
            child_laws = child_laws[:1]
        return child_laws, token_ids

    worst = 0.0
    for target, laws in _pairs(num_laws=2):
        outcomes = list(independent(*(without_replacement(law, 1) for law in laws)))
        law, _ = output_law(target, outcomes, lambda draws, laws=laws: tried_once(laws, draws))
        worst = max(worst, worst_error(law, target))
    assert worst > 0.05


def test_trap_the_best_of_the_sampled_siblings() -> None:
    """Three draws of which the two likeliest are sent, as a cut to a budget by estimate would: no longer draws."""

    def best_two(laws: Sequence[Law], draws: Sequence[Draws]) -> tuple[list[ChildLaw], list[int]]:
        kept = sorted(draws[0], key=lambda token: -laws[0][token])[:2]
        return node_with(laws, [tuple(token for token in draws[0] if token in kept)])

    worst = 0.0
    for target, laws in _pairs():
        outcomes = list(independent(without_replacement(laws[0], 3)))
        law, _ = output_law(target, outcomes, lambda draws, laws=laws: best_two(laws, draws))
        worst = max(worst, worst_error(law, target))
    assert worst > 0.1


def test_the_first_draws_of_several_are_draws() -> None:
    """Three drawn, the first two sent: a cut by order, which looks at no value."""
    for target, laws in _pairs():
        outcomes = list(independent(without_replacement(laws[0], 3)))
        law, _ = output_law(target, outcomes, lambda draws, laws=laws: node_with(laws, [draws[0][:2]]))
        assert worst_error(law, target) < EXACT
