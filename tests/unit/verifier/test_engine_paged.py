"""The engine over the paged kernels (their references here), decode steps recorded: tokens are those of plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SamplingParams, SpeculationOptions
from specgrove.sampling.rules import Rule
from specgrove_kernels.backend import KernelSet, reference_kernels
from support.engine_stand import InProcessDrafter, knowing_trees, running_stand
from support.paged_models import ReplayingCapture, paged
from support.tiny_models import VOCAB_SIZE

LENGTHS = (1, 3, 4, 5, 17)  # at the edges of blocks of 4
MAX_TOKENS = 12
SAMPLINGS = [
    pytest.param(SamplingParams(temperature=0.0), id="greedy"),
    pytest.param(SamplingParams(temperature=1.0, seed=2**63 + 5), id="sampled"),
    pytest.param(SamplingParams(temperature=1.3, top_k=20, top_p=0.9, seed=3), id="truncated"),
]


def prompts() -> list[list[int]]:
    random = Random(7)
    return [[random.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


def together(
    loaded: LoadedModel, samplings: Sequence[SamplingParams], drafters: Sequence[InProcessDrafter] = (), **settings: Any
) -> list[list[int]]:
    """The tokens of all prompts at once, each with its sampling."""
    with running_stand(loaded, *drafters, **settings) as stand:
        running = [
            stand.start(prompt, MAX_TOKENS, sampling=sampling, min_tokens=3, stop_token_ids=(5, 40))
            for prompt, sampling in zip(prompts(), samplings, strict=True)
        ]
        return [one.answer().token_ids for one in running]


def drafters_for(outputs: Sequence[Sequence[int]]) -> list[InProcessDrafter]:
    truths = [[*prompt, *output] for prompt, output in zip(prompts(), outputs, strict=True)]
    return [InProcessDrafter(knowing_trees(truths, right_len=3))]


class CountingKernels:
    """The references, and how often the sampler was asked."""

    def __init__(self) -> None:
        right = reference_kernels()
        self.num_choices = 0

        def choose(*arguments: Any, **options: Any) -> torch.Tensor:
            self.num_choices += 1
            return right.choose_tokens(*arguments, **options)

        self.kernels: KernelSet = replace(right, choose_tokens=choose)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("is_recorded", [False, True])
def test_trees_of_many_sessions_give_the_tokens_of_plain_torch(
    target: LoadedModel, sampling: SamplingParams, is_recorded: bool
) -> None:
    samplings, capture, counting = [sampling] * len(LENGTHS), ReplayingCapture(), CountingKernels()
    expected = together(target, samplings)
    model = paged(target, kernels=counting.kernels, capture=capture if is_recorded else None)
    assert together(model, samplings) == expected
    assert together(model, samplings, drafters_for(expected)) == expected
    assert bool(capture.num_replayed) == is_recorded
    assert bool(counting.num_choices) == (sampling.top_k == 0)


def test_requests_that_the_kernels_cannot_sample_share_steps_with_those_they_can(target: LoadedModel) -> None:
    samplings = [SAMPLINGS[number % 3].values[0] for number in range(len(LENGTHS))]
    expected = together(target, samplings)  # type: ignore[arg-type]
    assert together(paged(target), samplings, drafters_for(expected)) == expected  # type: ignore[arg-type]


def test_other_rules_are_not_sampled_by_the_kernels(target: LoadedModel) -> None:
    counting = CountingKernels()
    outputs = []
    for model in (target, paged(target, kernels=counting.kernels)):
        with running_stand(model) as stand:
            options = SpeculationOptions(rule=Rule.NAIVE)
            answer = stand.generate(
                prompts()[1], MAX_TOKENS, sampling=SamplingParams(temperature=1.0, seed=4), speculation=options
            )
            outputs.append(answer.token_ids)
    assert outputs[0] == outputs[1]
    assert counting.num_choices == 0


def test_a_tiny_cache_preempts_and_changes_nothing(target: LoadedModel) -> None:
    samplings = [SamplingParams(temperature=0.8, seed=11)] * len(LENGTHS)
    expected = together(target, samplings)
    model = paged(target, capture=ReplayingCapture())
    with running_stand(model, *drafters_for(expected), kv_tokens=48, max_step_rows=9) as stand:
        running = [
            stand.start(prompt, MAX_TOKENS, sampling=samplings[0], min_tokens=3, stop_token_ids=(5, 40))
            for prompt in prompts()
        ]
        assert [one.answer().token_ids for one in running] == expected
        assert stand.num_preemptions > 0
        stand.assert_empty()
