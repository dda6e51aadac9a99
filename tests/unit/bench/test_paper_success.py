"""Success rates against brute force: the law of the whole text, without a cache, a batch or a tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.noise import gumbel_row
from specgrove_bench.paper.counts import MAX_WIDTH, NEVER, Success
from specgrove_bench.paper.loop import Loop
from specgrove_bench.paper.places import at_depth, find_places
from specgrove_bench.paper.speculator import Speculator, SsmPool
from specgrove_bench.paper.story import Trace
from specgrove_bench.paper.ways import Way
from specgrove_bench.prompts import BenchPrompt
from specgrove_drafter.jobs import Budget
from support.paper_pair import make_asks, make_batch, make_prompts, write_traces
from support.tiny_models import own_logits, own_model


def _brute_places(folder: Path, trace: Trace, temperature: float) -> list[int]:
    """Where each output token stands in the SSM's law over the whole vocabulary."""
    model, prompt = own_model(folder), trace.ask.prompt.token_ids
    logits = own_logits(model, (*prompt, *trace.output_ids))
    places = []
    for offset, token_id in enumerate(trace.output_ids):
        position = len(prompt) + offset
        scores = logits[position - 1].log_softmax(dim=-1)
        if temperature:
            scores = scores + temperature * gumbel_row(trace.ask.sampling.seed, position, scores.numel())
        place = int((scores > scores[token_id]).sum())
        places.append(place if place < MAX_WIDTH else NEVER)
    return places


@pytest.mark.parametrize("way", [Way.GREEDY, Way.COUPLED])
def test_success_rates_are_those_of_brute_force(
    target: LoadedModel, pool: SsmPool, ssm_folders: tuple[Path, ...], way: Way
) -> None:
    temperature = 0.0 if way.is_greedy else 0.7
    prompts = make_prompts(3, seed=3)
    batch, asks = make_batch(target, prompts), make_asks(prompts, temperature)
    traces = write_traces(target, batch, asks, way)
    found = find_places(pool.ssms[0], traces, way, max_depth=1)
    expected = [_brute_places(ssm_folders[0], trace, temperature) for trace in traces]
    assert [list(at_depth(places, 1)) for places in found] == expected
    success = Success.of_places(place for places in found for place in at_depth(places, 1))
    assert 0.0 < (success.rates[0] or 0.0) < (success.rates[-1] or 0.0) <= 1.0


def test_success_counts_each_place_at_its_width_and_beyond() -> None:
    success = Success.of_places([0, 0, 2, 4, NEVER])
    assert success.num_hits == (2, 2, 3, 3, 4)
    assert (success + Success.of_places([1])).num_hits == (2, 3, 4, 4, 5)
    assert Success().rates == (None,) * MAX_WIDTH


def test_fed_children_below_a_base_use_the_features_of_that_base(target: LoadedModel, fed_pool: SsmPool) -> None:
    prompts = make_prompts(2, seed=4)
    traces = write_traces(target, make_batch(target, prompts, fed_pool), make_asks(prompts, 0.0), Way.GREEDY)
    ssm = fed_pool.ssms[0]
    together = find_places(ssm, traces, Way.GREEDY, max_depth=3)
    # Each base by itself: what was computed for the base before cannot help.
    for trace, places in zip(traces, together, strict=True):
        for start in range(len(trace.output_ids)):
            prompt = (*trace.ask.prompt.token_ids, *trace.output_ids[:start])
            ask = make_asks([BenchPrompt("any", prompt)], 0.0)[0]
            alone = find_places(ssm, [Trace(ask, trace.output_ids[start:], trace.features)], Way.GREEDY, max_depth=3)
            assert alone[0][0] == places[start]


def test_mss_accepts_about_as_often_as_its_formula_says(
    target: LoadedModel, pool: SsmPool, ssm_folders: tuple[Path, ...]
) -> None:
    """One draw is accepted with probability sum(min(target_probs, draft_probs))."""
    prompts = [make_prompts(1, seed=7)[0]] * 150
    asks = make_asks(prompts, 1.0, seed=100)
    # One step each is enough: the same node with other noise.
    asks = [replace(ask, max_tokens=2) for ask in asks]
    loop = Loop(make_batch(target, prompts), asks, Way.MSS, target.vocab_size)
    played = loop.play(Speculator([pool.ssms[0].grower("1")]), Budget(1, 1))
    rate = sum(one.first_draws[0] == 0 for one in played) / len(played)
    laws = [_law(folder, prompts[0].token_ids) for folder in (Path(target.source), ssm_folders[0])]
    expected = float(torch.minimum(*laws).sum())
    assert rate == pytest.approx(expected, abs=0.12)


def _law(folder: Path, token_ids: tuple[int, ...]) -> torch.Tensor:
    return own_logits(own_model(folder), token_ids)[-1].softmax(dim=-1)
