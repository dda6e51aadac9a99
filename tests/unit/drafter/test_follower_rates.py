"""What may come next and how likely: learned hit rates, shares of followers, shorter matches for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrove_drafter.members.follower_rates import (
    PRIOR_HIT_RATES,
    PRIOR_TRIALS,
    HitRates,
    learn_next,
    likely_next,
)
from specgrove_drafter.members.suffix_automaton import SuffixAutomaton

TWO = PRIOR_HIT_RATES[1]
ONE = PRIOR_HIT_RATES[0]


def indexed(tokens: Sequence[int]) -> SuffixAutomaton:
    text = SuffixAutomaton()
    for token_id in tokens:
        text.append(token_id)
    return text


def likely(tokens: Sequence[int], rates: HitRates | None = None) -> dict[int, float]:
    text = indexed(tokens)
    return likely_next(text, text.match(), rates or HitRates())


def test_followers_share_the_hit_rate_of_their_match() -> None:
    assert likely([1, 2, 70, 1, 2, 70, 1, 2, 80, 1, 2]) == pytest.approx({70: TWO * 2 / 3, 80: TWO / 3})


def test_a_shorter_match_shares_what_the_longer_one_leaves() -> None:
    probs = likely([5, 2, 80, 1, 2, 70, 6, 1, 2])
    assert probs == pytest.approx({70: TWO, 80: (1 - TWO) * ONE})


def test_only_the_match_that_failed_and_the_next_shorter_one_learn() -> None:
    rates = HitRates()
    text = indexed([5, 2, 80, 1, 2, 70, 1, 2])
    learn_next(text, rates, 80)
    assert (rates.trials[0], rates.trials[1]) == (PRIOR_TRIALS + 1, PRIOR_TRIALS + 1)
    assert rates.rate(2) < TWO
    assert rates.rate(1) > ONE
    learn_next(text, rates, 70)
    assert rates.trials[0] == PRIOR_TRIALS + 1  # the longer match was right


def test_long_matches_share_a_rate() -> None:
    rates = HitRates()
    rates.observe(40, True)
    assert rates.rate(8) == rates.rate(1000) > PRIOR_HIT_RATES[-1]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(0, 80))
def test_probabilities_are_a_law_with_something_left_for_the_unseen(tokens: list[int], num_learned: int) -> None:
    text, rates = SuffixAutomaton(), HitRates()
    for place, token_id in enumerate(tokens):
        if place >= len(tokens) - num_learned:
            learn_next(text, rates, token_id)
        text.append(token_id)
    probs = likely_next(text, text.match(), rates)
    assert all(prob > 0.0 for prob in probs.values())
    assert sum(probs.values()) < 1.0
