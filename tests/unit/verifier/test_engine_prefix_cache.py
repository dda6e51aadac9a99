"""A warm cache changes no token: prefix hits, preemption, priorities, tiny limits, all at once, against solo runs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SamplingParams, SpeculationOptions
from support.engine_stand import InProcessDrafter, Stand, knowing_trees, random_trees, running_stand
from support.tiny_models import VOCAB_SIZE

BLOCK_SIZE = 4
MAX_TOKENS = 14
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.9, seed=2**40 + 3)
SAMPLINGS = [pytest.param(GREEDY, id="greedy"), pytest.param(SAMPLED, id="sampled")]
ON, OFF = SpeculationOptions(), SpeculationOptions(is_enabled=False)


def _prompts() -> list[list[int]]:
    """Lengths of whole blocks and one more or less; half of them begin alike."""
    random = Random(5)
    common = [random.randrange(3, VOCAB_SIZE) for _ in range(5 * BLOCK_SIZE)]
    prompts = []
    for num_blocks in (1, 3, 5, 8):
        for extra in (-1, 0, 1):
            length = num_blocks * BLOCK_SIZE + extra
            own = [random.randrange(3, VOCAB_SIZE) for _ in range(length)]
            prompts.append((common + own)[:length] if num_blocks != 3 else own)
    return prompts


@pytest.fixture(scope="module")
def plain(target: LoadedModel) -> Callable[[SamplingParams], list[list[int]]]:
    """The tokens of a cold cache, one session at a time, without drafts; each law run once."""
    known: dict[SamplingParams, list[list[int]]] = {}

    def tokens(sampling: SamplingParams) -> list[list[int]]:
        if sampling not in known:
            with running_stand(target, prefix_cache="off") as stand:
                known[sampling] = [_generate(stand, prompt, sampling) for prompt in _prompts()]
                assert stand.sample("specgrove:prefix_cache_queries_total") == 0
        return known[sampling]

    return tokens


def _generate(stand: Stand, prompt: list[int], sampling: SamplingParams, **request: Any) -> list[int]:
    return stand.generate(prompt, MAX_TOKENS, sampling=sampling, **request).token_ids


def _drafters(kind: str, truths: list[list[int]]) -> list[InProcessDrafter]:
    propose = {"none": None, "random": random_trees(VOCAB_SIZE), "knowing": knowing_trees(truths, right_len=3)}[kind]
    return [InProcessDrafter(propose)] if propose is not None else []


def _truths(outputs: list[list[int]]) -> list[list[int]]:
    return [prompt + output for prompt, output in zip(_prompts(), outputs, strict=True)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ["none", "random", "knowing"])
def test_a_warm_cache_changes_nothing(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]], sampling: SamplingParams, kind: str
) -> None:
    """Twice: the first round warms it with prompts that begin alike, the second finds whole prompts and answers."""
    with running_stand(target, *_drafters(kind, _truths(plain(sampling)))) as stand:
        for round_number in range(2):
            for prompt, expected in zip(_prompts(), plain(sampling), strict=True):
                assert _generate(stand, prompt, sampling) == expected, f"round {round_number}"
        stand.settle()
        queried = stand.sample("specgrove:prefix_cache_queries_total")
        assert queried == 2 * sum(map(len, _prompts()))
        assert stand.sample("specgrove:prefix_cache_hits_total") > queried / 2
        stand.assert_empty()


@pytest.mark.parametrize("num_blocks", [1, 2, 7])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_hit_leaves_one_row_at_least(target: LoadedModel, num_blocks: int, extra: int) -> None:
    prompt = [5 + place % 80 for place in range(num_blocks * BLOCK_SIZE + extra)]
    with running_stand(target) as stand:
        cold = stand.generate(prompt, 1).token_ids
        stand.settle()
        rows = stand.sample("specgrove:step_rows_sum")
        assert stand.generate(prompt, 1).token_ids == cold
        stand.settle()
        num_hit = (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert stand.sample("specgrove:step_rows_sum") - rows == len(prompt) - num_hit
        assert stand.sample("specgrove:prefix_cache_hits_total") == num_hit


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_next_turn_of_a_conversation_finds_the_answer_too(target: LoadedModel, sampling: SamplingParams) -> None:
    turns = [[7, 8, 9, 10, 11], [40, 41, 42], [60, 61, 62, 63, 64]]
    with running_stand(target, prefix_cache="off") as cold, running_stand(target) as warm:
        history: list[int] = []
        for turn in turns:
            history += turn
            expected = cold.generate(history, 11, sampling=sampling).token_ids
            assert warm.generate(history, 11, sampling=sampling).token_ids == expected
            history += expected
        warm.settle()
        # Of the last turn all but the open blocks and the new words; the last token of an answer is never cached.
        assert warm.sample("specgrove:prefix_cache_hits_total") == (15 + 29) // BLOCK_SIZE * BLOCK_SIZE - BLOCK_SIZE


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_generation_of_another_verifier_goes_on_from_the_cache(
    target: LoadedModel, plain: Callable[[SamplingParams], list[list[int]]], sampling: SamplingParams
) -> None:
    with running_stand(target, *_drafters("random", [])) as stand:
        for prompt, expected in zip(_prompts(), plain(sampling), strict=True):
            assert _generate(stand, prompt, sampling) == expected
            for cut in (1, 6, MAX_TOKENS - 1):
                assert expected[:cut] + _generate(stand, prompt, sampling, committed=expected[:cut]) == expected
        stand.assert_empty()


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", ["none", "random", "knowing"])
@pytest.mark.parametrize("limits", [{"kv_tokens": 64}, {"kv_tokens": 64, "max_step_rows": 8}, {"max_step_rows": 8}])
def test_tiny_limits_priorities_and_forced_preemption_change_nothing(
    target: LoadedModel,
    plain: Callable[[SamplingParams], list[list[int]]],
    sampling: SamplingParams,
    kind: str,
    limits: dict[str, int],
) -> None:
    """Blocks for one and a half of the longest, steps of eight rows, everybody at once, twice, some undrafted."""
    expected = plain(sampling)
    with running_stand(target, *_drafters(kind, _truths(expected)), max_nodes=5, **limits) as stand:
        for round_number in range(2):
            running = [
                stand.start(
                    prompt,
                    MAX_TOKENS,
                    sampling=sampling,
                    session_id=f"{place}-{round_number}",
                    priority=(place * 7) % 5 - 2,
                    speculation=OFF if place % 4 == 3 else ON,
                )
                for place, prompt in enumerate(_prompts())
            ]
            assert [one.answer().token_ids for one in running] == expected, f"round {round_number}"
        stand.settle()
        if "kv_tokens" in limits:
            assert stand.num_preemptions > 0
            assert stand.sample("specgrove:prefix_cache_evictions_total") > 0
            assert stand.sample("specgrove:num_preemptions_total") == stand.num_preemptions
        assert stand.sample("specgrove:prefix_cache_hits_total") > 0
        stand.assert_empty()


def test_switched_off_nothing_is_shared(target: LoadedModel) -> None:
    with running_stand(target, prefix_cache="off") as stand:
        for _ in range(2):
            stand.generate(list(range(5, 40)), 3)
        stand.settle()
        assert stand.sample("specgrove:step_rows_sum") == 2 * (35 + 2)
        assert stand.cache.allocator.num_cached == 0
        assert stand.sample("specgrove:prefix_cache_hits_total") == 0
