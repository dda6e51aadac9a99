"""Logprobs are those of a fresh prefill of the same tokens, one for each token, whatever was drafted or preempted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgrove.errors import InvalidInput
from specgrove.outcome import TokenLogprobs
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from support.engine_stand import Answer, InProcessDrafter, knowing_trees, random_trees, running_stand
from support.lawful_drafts import flat_law, lawful_drafter
from support.option_mixes import Mix, alone, crowds, together, truths
from support.paged_models import paged
from support.tiny_models import VOCAB_SIZE, own_logits, own_model

PROPERTY = settings(
    deadline=None, derandomize=True, max_examples=20, database=None, suppress_health_check=list(HealthCheck)
)
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def own(tiny_folder: Path) -> Any:
    return own_model(tiny_folder)


def _assert_prefilled(own: Any, mix: Mix, answer: Answer) -> None:
    """The logprobs of `answer` are log softmax of the model's own logits over the whole sequence."""
    whole = [*mix.prompt, *answer.token_ids]
    truth = own_logits(own, whole).log_softmax(-1)
    start = len(mix.prompt)
    assert len(answer.logprobs) == (0 if mix.top_logprobs is None else len(answer.token_ids))
    for place, logprobs in enumerate(answer.logprobs):
        _assert_row(truth[start + place - 1], whole[start + place], logprobs, mix.top_logprobs)
    assert len(answer.prompt_logprobs) == (start - 1 if mix.wants_prompt_logprobs else 0)
    for place, logprobs in enumerate(answer.prompt_logprobs):
        _assert_row(truth[place], whole[place + 1], logprobs, mix.top_logprobs)


def _assert_row(truth: torch.Tensor, token_id: int, logprobs: TokenLogprobs, num_top: int | None) -> None:
    assert logprobs.logprob == pytest.approx(float(truth[token_id]), abs=TOLERANCE)
    assert len(logprobs.top) == (num_top or 0)
    expected = truth.topk(num_top or 0).values.tolist()
    assert [logprob for _, logprob in logprobs.top] == pytest.approx(expected, abs=TOLERANCE)
    for top_id, logprob in logprobs.top:
        assert logprob == pytest.approx(float(truth[top_id]), abs=TOLERANCE)
        assert top_id != token_id or logprob == logprobs.logprob


@PROPERTY
@given(crowd=crowds(), kv_tokens=st.sampled_from([64, 1024]), max_step_rows=st.sampled_from([8, 256]))
def test_they_are_those_of_a_fresh_prefill(
    target: LoadedModel, own: Any, crowd: list[Mix], kv_tokens: int, max_step_rows: int
) -> None:
    plain = alone(target, crowd)
    for propose in (None, random_trees(VOCAB_SIZE), knowing_trees(truths(crowd, plain))):
        drafters = [] if propose is None else [InProcessDrafter(propose)]
        answers = together(target, crowd, *drafters, kv_tokens=kv_tokens, max_step_rows=max_step_rows, max_nodes=7)
        for mix, answer, expected in zip(crowd, answers, plain, strict=True):
            assert answer.token_ids == expected.token_ids
            _assert_prefilled(own, mix, answer)


def test_asking_changes_no_token_and_bias_and_temperature_change_no_logprob(target: LoadedModel, own: Any) -> None:
    sampling = SamplingParams(temperature=1.7, top_k=9, presence_penalty=2.0, logit_bias=((9, 100.0),), seed=4)
    silent = Mix((5, 9, 33, 7), sampling)
    asking = replace(silent, top_logprobs=3, wants_prompt_logprobs=True)
    first, second = alone(target, [silent])[0], alone(target, [asking])[0]
    assert first.token_ids == second.token_ids
    assert not first.logprobs
    assert not first.prompt_logprobs
    _assert_prefilled(own, asking, second)


def test_a_prompt_in_the_prefix_cache_is_scored_all_the_same(target: LoadedModel, own: Any) -> None:
    mix = Mix(tuple(range(5, 40)), SamplingParams(temperature=0.0), top_logprobs=2)
    with running_stand(target) as stand:
        for one in (mix, replace(mix, wants_prompt_logprobs=True), mix):
            answer = one.start(stand).answer()
            _assert_prefilled(own, one, answer)
        assert stand.sample("specgrove:prefix_cache_hits_total") == 32  # the last one's: the one that scores reads all
        stand.assert_empty()


def test_kernels_and_features_share_steps_with_prompts_that_are_scored(target: LoadedModel, own: Any) -> None:
    sampling = SamplingParams(temperature=0.8, seed=3)
    crowd = [
        Mix((3 + n, *range(9, 30)), sampling, top_logprobs=2 if n % 2 else None, wants_prompt_logprobs=n % 2 == 1)
        for n in range(4)
    ]
    expected = alone(target, crowd)
    for model, layers in ((paged(target), ()), (target, (1,))):
        drafter = InProcessDrafter(knowing_trees(truths(crowd, expected)), feature_layers=layers)
        answers = together(model, crowd, drafter, max_step_rows=16, max_nodes=7)
        for mix, answer, plain in zip(crowd, answers, expected, strict=True):
            assert answer.token_ids == plain.token_ids
            _assert_prefilled(own, mix, answer)


def test_what_an_earlier_owner_sent_is_not_sent_again(target: LoadedModel) -> None:
    mix = Mix((5, 9, 33, 7), SamplingParams(temperature=0.0), max_tokens=10, top_logprobs=1)
    with running_stand(target) as stand:
        whole = mix.start(stand).answer()
        resumed = mix.start(stand, whole.token_ids[:4]).answer()
    assert resumed.token_ids == whole.token_ids[4:]
    assert [row.logprob for row in resumed.logprobs] == pytest.approx([row.logprob for row in whole.logprobs[4:]])


def test_more_than_twenty_are_refused(target: LoadedModel) -> None:
    with pytest.raises(InvalidInput) as caught:
        alone(target, [Mix((5,), SamplingParams(), top_logprobs=21)])
    assert caught.value.field == "top_logprobs"


@pytest.mark.parametrize("weights", ["fp16_packed", "float32"])
@pytest.mark.parametrize("rule", [Rule.COUPLED, Rule.MSS])
def test_with_packed_weights_they_are_those_that_the_verifier_itself_prefills(
    tiny_folder: Path, weights: str, rule: Rule
) -> None:
    packed = load_model(tiny_folder, weights)
    sampling = SamplingParams(temperature=1.0, seed=3, repetition_penalty=1.2)
    mix = Mix((5, 9, 33, 7, 60), sampling, max_tokens=40, top_logprobs=1, rule=rule)
    drafter = lawful_drafter([flat_law(60)], (4, 2), 1) if rule is Rule.MSS else None
    [answer] = together(packed, [mix], drafter or InProcessDrafter(random_trees(VOCAB_SIZE)))
    assert answer.stats.num_draft_tokens > 50
    whole = replace(mix, prompt=(*mix.prompt, *answer.token_ids), max_tokens=1, wants_prompt_logprobs=True)
    [prefilled] = alone(packed, [whole])
    told = [scores.logprob for scores in answer.logprobs]
    assert told == pytest.approx([scores.logprob for scores in prefilled.prompt_logprobs[4:]], abs=TOLERANCE)
