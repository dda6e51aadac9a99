"""Penalties and biases in the engine: counts follow the path of each node, so speculation shows nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgrove.errors import InvalidInput
from specgrove.outcome import FinishReason
from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.adjustments import LogitAdjuster
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.tree import TokenTree
from support.engine_stand import Answer, InProcessDrafter, Mirror, knowing_trees, random_trees, running_stand
from support.lawful_drafts import flat_law, lawful_drafter, skewed_law
from support.option_mixes import Mix, alone, crowds, together, truths
from support.paged_models import paged
from support.tiny_models import VOCAB_SIZE

PROPERTY = settings(
    deadline=None, derandomize=True, max_examples=25, database=None, suppress_health_check=list(HealthCheck)
)
STRONG = SamplingParams(temperature=0.0, repetition_penalty=1.4, frequency_penalty=2.0, presence_penalty=1.0)
CROWD = [Mix(tuple(range(3 + n, 9 + n)), STRONG, max_tokens=20) for n in range(4)]


def _tokens(answers: Sequence[Answer]) -> list[tuple[list[int], FinishReason | None, str]]:
    return [(answer.token_ids, answer.finish_reason, answer.stop_string) for answer in answers]


@PROPERTY
@given(crowd=crowds(), right_len=st.sampled_from([1, 3, 99]), kv_tokens=st.sampled_from([64, 1024]))
def test_speculation_and_company_change_nothing(
    target: LoadedModel, crowd: list[Mix], right_len: int, kv_tokens: int
) -> None:
    plain = alone(target, crowd)
    expected = _tokens(plain)
    knowing = knowing_trees(truths(crowd, plain), right_len=right_len)
    for propose in (None, random_trees(VOCAB_SIZE, seed=right_len), knowing):
        drafters = [] if propose is None else [InProcessDrafter(propose)]
        assert _tokens(together(target, crowd, *drafters, kv_tokens=kv_tokens)) == expected


@PROPERTY
@given(crowd=crowds(), cut=st.integers(1, 15))
def test_another_verifier_goes_on_with_the_same_tokens(target: LoadedModel, crowd: list[Mix], cut: int) -> None:
    plain = alone(target, crowd)
    with running_stand(target, InProcessDrafter(random_trees(VOCAB_SIZE))) as stand:
        for mix, whole in zip(crowd, plain, strict=True):
            committed = whole.token_ids[: min(cut, len(whole.token_ids) - 1)]
            resumed = mix.start(stand, committed).answer()
            assert [*committed, *resumed.token_ids] == whole.token_ids
            assert resumed.finish_reason == whole.finish_reason


def test_counts_change_inside_an_accepted_path(target: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """With counts that are frozen at the root the same trees give other tokens: this is what the tests above see."""
    plain = alone(target, CROWD)

    def knowing() -> InProcessDrafter:
        return InProcessDrafter(knowing_trees(truths(CROWD, plain)))

    drafted = together(target, CROWD, knowing())
    assert _tokens(drafted) == _tokens(plain)
    assert max(answer.stats.num_accepted_tokens for answer in drafted) > 8
    right = LogitAdjuster._counts_after

    def frozen(adjuster: LogitAdjuster, tree: TokenTree, passing: Sequence[int]) -> np.ndarray:
        counts = right(adjuster, tree, passing)
        counts[1:] = counts[0]
        return counts

    monkeypatch.setattr(LogitAdjuster, "_counts_after", frozen)
    assert _tokens(alone(target, CROWD)) == _tokens(plain)
    assert _tokens(together(target, CROWD, _forgiving(truths(CROWD, plain)))) != _tokens(plain)


def _forgiving(sequences: list[list[int]]) -> InProcessDrafter:
    """Knows the true sequences, and guesses once a text has left them."""
    propose = knowing_trees(sequences)

    def or_a_guess(mirror: Mirror) -> TokenTree | None:
        try:
            return propose(mirror)
        except AssertionError:
            return TokenTree.from_paths(mirror.token_ids[-1], [[3]])

    return InProcessDrafter(or_a_guess)


def test_penalties_change_what_is_said(target: LoadedModel) -> None:
    free = [Mix(mix.prompt, SamplingParams(temperature=0.0), max_tokens=20) for mix in CROWD]
    penalised, plain = alone(target, CROWD), alone(target, free)
    assert _tokens(penalised) != _tokens(plain)

    def num_repeats(answers: Sequence[Answer]) -> int:
        return sum(len(answer.token_ids) - len(set(answer.token_ids)) for answer in answers)

    assert num_repeats(penalised) < num_repeats(plain)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_of_a_hundred_is_an_order_and_of_minus_a_hundred_a_ban(target: LoadedModel, temperature: float) -> None:
    forced = SamplingParams(temperature=temperature, logit_bias=((41, 100.0),), seed=3)
    [answer] = alone(target, [Mix((5, 9), forced, max_tokens=6)])
    assert answer.token_ids == [41] * 6
    [free] = alone(target, [Mix((5, 9), SamplingParams(temperature=temperature, seed=3), max_tokens=12)])
    banned = tuple((token_id, -100.0) for token_id in sorted(set(free.token_ids)))
    crowd = [Mix((5, 9), SamplingParams(temperature=temperature, logit_bias=banned, seed=3), max_tokens=12)]
    [answer] = together(target, crowd, InProcessDrafter(random_trees(VOCAB_SIZE)))
    assert not set(answer.token_ids) & set(free.token_ids)


def test_min_tokens_wins_over_a_bias_for_the_end(target: LoadedModel) -> None:
    sampling = SamplingParams(temperature=0.0, logit_bias=((7, 100.0),))
    mix = Mix((5, 9), sampling, max_tokens=9, min_tokens=4, stop_token_ids=(7,))
    [answer] = together(target, [mix], InProcessDrafter(random_trees(VOCAB_SIZE)))
    assert 7 not in answer.token_ids[:4]
    assert answer.token_ids[4:] == [7]
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_kernels_step_aside_for_penalties_and_serve_the_others(target: LoadedModel, temperature: float) -> None:
    strong = SamplingParams(temperature=temperature, frequency_penalty=2.0, repetition_penalty=1.3, seed=5)
    plain = SamplingParams(temperature=temperature, seed=6)
    crowd = [Mix((3 + n, 9, 4), strong if n % 2 else plain) for n in range(4)]
    expected = alone(target, crowd)
    drafter = InProcessDrafter(knowing_trees(truths(crowd, expected)))
    by_kernels = together(paged(target), crowd, drafter)
    assert _tokens(by_kernels) == _tokens(expected)


def test_mss_without_drafts_is_naive_and_with_them_keeps_bans(target: LoadedModel) -> None:
    banned = tuple((token_id, -100.0) for token_id in range(3, 40))
    sampling = SamplingParams(temperature=1.3, logit_bias=banned, presence_penalty=1.0, seed=7)
    by_rule = [alone(target, [Mix((5, 9, 44), sampling, rule=rule)])[0] for rule in (Rule.MSS, Rule.NAIVE)]
    assert by_rule[0].token_ids == by_rule[1].token_ids
    drafter = lawful_drafter([flat_law(60), skewed_law(60, 1)], (2, 2), 1)
    [answer] = together(target, [Mix((5, 9, 44), sampling, max_tokens=40, rule=Rule.MSS)], drafter)
    assert answer.stats.num_draft_tokens > 20
    assert not set(answer.token_ids) & set(range(3, 40))


def test_an_id_outside_the_vocabulary_is_refused(target: LoadedModel) -> None:
    with pytest.raises(InvalidInput) as caught:
        alone(target, [Mix((5,), SamplingParams(logit_bias=((VOCAB_SIZE, 1.0),)))])
    assert caught.value.field == "logit_bias"
