"""The promise: whatever is drafted, whoever shares the batch, whenever it moves, the tokens are the target's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.sampling.params import SamplingParams, SpeculationOptions
from specgrove.tree import TokenTree
from support.engine_stand import InProcessDrafter, Mirror, Stand, knowing_trees, random_trees, running_stand
from support.tiny_models import VOCAB_SIZE

LENGTHS = (1, 2, 4, 5, 9, 16, 17, 30)
MAX_TOKENS = 14
SAMPLINGS = [
    pytest.param(SamplingParams(temperature=0.0), id="greedy"),
    pytest.param(SamplingParams(temperature=0.8, seed=11), id="0.8"),
    pytest.param(SamplingParams(temperature=1.0, seed=2**63 + 5), id="1.0"),
    pytest.param(SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02, seed=3), id="truncated"),
]


def _prompts() -> list[list[int]]:
    random = Random(7)
    return [[random.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


def _solo(stand: Stand, sampling: SamplingParams, max_tokens: int = MAX_TOKENS) -> list[list[int]]:
    return [stand.generate(prompt, max_tokens, sampling=sampling).token_ids for prompt in _prompts()]


def _together(stand: Stand, sampling: SamplingParams, max_tokens: int = MAX_TOKENS) -> list[list[int]]:
    running = [stand.start(prompt, max_tokens, sampling=sampling) for prompt in _prompts()]
    return [one.answer().token_ids for one in running]


@pytest.fixture(scope="module")
def plain(target: LoadedModel) -> Callable[[SamplingParams], list[list[int]]]:
    """The tokens without any drafter, one session at a time; each law run once."""
    known: dict[SamplingParams, list[list[int]]] = {}

    def tokens(sampling: SamplingParams) -> list[list[int]]:
        if sampling not in known:
            with running_stand(target) as stand:
                known[sampling] = _solo(stand, sampling)
        return known[sampling]

    return tokens


def _truths(outputs: list[list[int]]) -> list[list[int]]:
    return [prompt + output for prompt, output in zip(_prompts(), outputs, strict=True)]


def test_greedy_is_what_transformers_generates(
    plain: Callable[[SamplingParams], list[list[int]]], greedy_truth: Callable[..., list[int]]
) -> None:
    expected = [greedy_truth(prompt, MAX_TOKENS) for prompt in _prompts()]
    assert plain(SamplingParams(temperature=0.0)) == expected
    assert len({tuple(output) for output in expected}) == len(expected)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_random_trees_change_nothing(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]], sampling: SamplingParams
) -> None:
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE))
    with running_stand(target, drafter) as stand:
        assert _solo(stand, sampling) == plain(sampling)
        assert stand.sample("specgrove:spec_decode_num_draft_tokens_total") > 300
        stand.assert_empty()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_perfect_trees_change_nothing_but_the_number_of_steps(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]], sampling: SamplingParams
) -> None:
    drafter = InProcessDrafter(knowing_trees(_truths(plain(sampling))))
    with running_stand(target, drafter) as stand:
        assert _solo(stand, sampling) == plain(sampling)
        assert stand.num_forwards <= len(LENGTHS) * MAX_TOKENS / 2.5
        stand.assert_empty()


@pytest.mark.parametrize("right_len", [1, 3])
def test_trees_that_are_right_for_a_while_change_nothing(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]], right_len: int
) -> None:
    sampling = SamplingParams(temperature=0.8, seed=11)
    drafter = InProcessDrafter(knowing_trees(_truths(plain(sampling)), right_len=right_len))
    with running_stand(target, drafter) as stand:
        assert _solo(stand, sampling) == plain(sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ["none", "random", "perfect"])
def test_eight_sessions_in_a_batch_change_nothing(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]], sampling: SamplingParams, kind: str
) -> None:
    truths = _truths(plain(sampling))
    drafters = {
        "none": [],
        "random": [InProcessDrafter(random_trees(VOCAB_SIZE))],
        "perfect": [InProcessDrafter(knowing_trees(truths))],
    }[kind]
    with running_stand(target, *drafters) as stand:
        assert _together(stand, sampling) == plain(sampling)
        assert stand.num_forwards < len(LENGTHS) * MAX_TOKENS / 2
        stand.assert_empty()


def test_merged_trees_of_several_drafters_change_nothing(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]]
) -> None:
    sampling = SamplingParams(temperature=1.0, seed=2**63 + 5)
    truths = _truths(plain(sampling))
    drafters = [
        InProcessDrafter(knowing_trees(truths, right_len=1), number=1),
        InProcessDrafter(random_trees(VOCAB_SIZE), number=2),
        InProcessDrafter(knowing_trees(truths, right_len=3, seed=4), number=3),
    ]
    with running_stand(target, *drafters, drafters_per_session=3, max_nodes=12) as stand:
        assert _together(stand, sampling) == plain(sampling)
        stand.settle()
        assert all(len(drafter.closed) == len(LENGTHS) for drafter in drafters)
        stand.assert_empty()


def test_a_tiny_cache_preempts_and_changes_nothing(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]]
) -> None:
    sampling = SamplingParams(temperature=0.8, seed=11)
    for drafters in ([], [InProcessDrafter(knowing_trees(_truths(plain(sampling))))]):
        with running_stand(target, *drafters, kv_tokens=64) as stand:
            assert _together(stand, sampling) == plain(sampling)
            assert stand.num_preemptions > 0
            stand.assert_empty()


@pytest.mark.parametrize("kind", ["none", "random", "perfect"])
def test_a_tiny_token_budget_changes_nothing(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]], kind: str
) -> None:
    sampling = SamplingParams(temperature=1.0, seed=2**63 + 5)
    drafters = {
        "none": [],
        "random": [InProcessDrafter(random_trees(VOCAB_SIZE))],
        "perfect": [InProcessDrafter(knowing_trees(_truths(plain(sampling))))],
    }[kind]
    with running_stand(target, *drafters, max_step_rows=8, max_nodes=7) as stand:
        assert _together(stand, sampling) == plain(sampling)
        stand.assert_empty()


def test_a_resumed_generation_goes_on_with_the_same_tokens(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]]
) -> None:
    sampling = SamplingParams(temperature=0.8, seed=11)
    with running_stand(target, InProcessDrafter(random_trees(VOCAB_SIZE))) as stand:
        for prompt, expected in zip(_prompts(), plain(sampling), strict=True):
            for cut in (1, MAX_TOKENS - 1):
                resumed = stand.generate(prompt, MAX_TOKENS, sampling=sampling, committed=expected[:cut])
                assert expected[:cut] + resumed.token_ids == expected
        stand.assert_empty()


def test_a_resumed_generation_that_was_over_says_so(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]]
) -> None:
    sampling = SamplingParams(temperature=0.8, seed=11)
    with running_stand(target) as stand:
        answer = stand.generate([5], MAX_TOKENS, sampling=sampling, committed=[9] * MAX_TOKENS)
        assert answer.token_ids == []
        assert answer.finish_reason == "length"
        stand.assert_empty()


@pytest.mark.parametrize(
    "options", [SpeculationOptions(is_enabled=False), SpeculationOptions(max_nodes=2), SpeculationOptions(max_depth=1)]
)
def test_a_requests_own_limits_change_nothing_and_are_kept(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]], options: SpeculationOptions
) -> None:
    sampling = SamplingParams(temperature=0.8, seed=11)
    drafter = InProcessDrafter(knowing_trees(_truths(plain(sampling))))
    with running_stand(target, drafter) as stand:
        for prompt, expected in zip(_prompts(), plain(sampling), strict=True):
            answer = stand.generate(prompt, MAX_TOKENS, sampling=sampling, speculation=options)
            assert answer.token_ids == expected
            if not options.is_enabled:
                assert answer.stats.num_drafts == 0
            elif options.max_depth:
                assert len(answer.stats.drafted_per_pos) == 1
            else:
                assert answer.stats.num_draft_tokens <= 2 * answer.stats.num_drafts
        assert bool(drafter.updates) == options.is_enabled


def test_packed_weights_are_exact_against_themselves(tiny_folder: Path) -> None:
    packed = load_model(tiny_folder, "fp16_packed")
    sampling = SamplingParams(temperature=0.8, seed=11)
    with running_stand(packed) as stand:
        expected = _solo(stand, sampling)
    with running_stand(packed, InProcessDrafter(knowing_trees(_truths(expected)))) as stand:
        assert _together(stand, sampling) == expected


def test_trees_of_sessions_that_fill_a_step_are_small_enough_for_all_of_them(target: LoadedModel) -> None:
    """Two chains of five nodes do not fit nine rows: the older session would get its own, the younger one none."""
    prompts = [[5, 9, 33, 7], [8, 3, 60]]
    with running_stand(target) as stand:
        truths = [prompt + stand.generate(prompt, 40).token_ids for prompt in prompts]

    def propose(mirror: Mirror) -> TokenTree:
        truth = next(ids for ids in truths if ids[: len(mirror.token_ids)] == mirror.token_ids)
        length = min(mirror.budget.max_nodes, mirror.budget.max_depth)
        return TokenTree.from_paths(mirror.token_ids[-1], [truth[len(mirror.token_ids) :][:length]])

    with running_stand(target, InProcessDrafter(propose), max_step_rows=9, max_nodes=8) as stand:
        answers = [one.answer() for one in [stand.start(prompt, 40) for prompt in prompts]]
        assert [prompt + answer.token_ids for prompt, answer in zip(prompts, answers, strict=True)] == truths
        older, younger = (answer.stats.num_steps for answer in answers)
        assert younger <= older + 2
