"""Replays against the loop that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgrove.runtime.features import decode_parts
from specgrove.runtime.loading import LoadedModel
from specgrove.tree import ExpansionConfig, TokenTree
from specgrove_bench.paper.loop import Loop
from specgrove_bench.paper.places import find_places, place_static_tree
from specgrove_bench.paper.replay import accepted_path, replay
from specgrove_bench.paper.speculator import MemberMaker, Speculator, SsmPool, make_lookup
from specgrove_bench.paper.ways import Way
from specgrove_drafter.jobs import Budget
from support.paper_pair import MAX_TOKENS, make_asks, make_batch, make_prompts, write_traces
from support.tiny_models import own_features, own_model

_REPLAYED = [way for way in Way if way.is_replayed]
_STATIC = (2, 1, 3, 1)
_SHAPES = {
    "static": lambda pool: [pool.ssms[0].grower(",".join(map(str, _STATIC)))],
    "best first": lambda pool: [pool.ssms[0].grower()],
    "all members": lambda pool: [*(ssm.grower() for ssm in pool.ssms), make_lookup],
}


def _temperature(way: Way) -> float:
    return 0.0 if way.is_greedy else 0.7


def _budget(widths: Sequence[int]) -> Budget:
    config = ExpansionConfig(tuple(widths))
    return Budget(config.num_draft_nodes, config.max_depth)


@pytest.mark.parametrize("way", _REPLAYED)
@pytest.mark.parametrize("shape", _SHAPES)
def test_replay_gives_the_account_of_the_loop(target: LoadedModel, pool: SsmPool, way: Way, shape: str) -> None:
    makers: list[MemberMaker] = _SHAPES[shape](pool)
    prompts = make_prompts(3)
    batch, asks = make_batch(target, prompts), make_asks(prompts, _temperature(way))
    budget = _budget(_STATIC) if shape == "static" else Budget(12, 5)
    traces = write_traces(target, batch, asks, way)
    played = Loop(batch, asks, way, target.vocab_size).play(Speculator(makers), budget)
    assert [one.trace.output_ids for one in played] == [trace.output_ids for trace in traces]
    replayed = replay(Speculator(makers), traces, way, budget)
    assert replayed == [one.counts for one in played]
    assert sum(counts.num_steps for counts in replayed) < sum(len(trace.output_ids) for trace in traces)


@pytest.mark.parametrize("way", _REPLAYED)
@pytest.mark.parametrize("is_fed", [False, True])
def test_places_give_the_account_of_static_trees(
    target: LoadedModel, pool: SsmPool, fed_pool: SsmPool, way: Way, is_fed: bool
) -> None:
    used = fed_pool if is_fed else pool
    prompts = make_prompts(3, seed=1)
    batch, asks = make_batch(target, prompts, used), make_asks(prompts, _temperature(way))
    traces = write_traces(target, batch, asks, way)
    places = find_places(used.ssms[0], traces, way, max_depth=len(_STATIC))
    speculator = Speculator([used.ssms[0].grower(",".join(map(str, _STATIC)))])
    for trace, found, counts in zip(traces, places, replay(speculator, traces, way, _budget(_STATIC)), strict=True):
        placed = place_static_tree(trace, found, _STATIC)
        assert placed.num_steps == counts.num_steps
        assert placed.num_committed == counts.num_committed
        assert placed.accepted_by_depth == counts.accepted_by_depth


def test_replay_follows_features_as_the_loop_does(target: LoadedModel, fed_pool: SsmPool) -> None:
    prompts = make_prompts(3, seed=2)
    batch, asks = make_batch(target, prompts, fed_pool), make_asks(prompts, 0.0)
    traces = write_traces(target, batch, asks, Way.GREEDY)
    assert all(len(trace.features) == len(trace.output_ids) for trace in traces)
    makers = [fed_pool.ssms[0].grower("3,2,1")]
    played = Loop(batch, asks, Way.GREEDY, target.vocab_size).play(Speculator(makers), _budget((3, 2, 1)))
    assert replay(Speculator(makers), traces, Way.GREEDY, _budget((3, 2, 1))) == [one.counts for one in played]


def test_features_of_a_base_are_those_of_the_row_that_chose_its_last_token(
    target: LoadedModel, fed_pool: SsmPool
) -> None:
    prompts = make_prompts(1, seed=8)
    (trace,) = write_traces(target, make_batch(target, prompts, fed_pool), make_asks(prompts, 0.0), Way.GREEDY)
    model, tokens = own_model(Path(target.source)), (*prompts[0].token_ids, *trace.output_ids)
    for base_len, features in trace.features.items():
        expected = own_features(model, tokens[:base_len], fed_pool.layout.layers)
        values = decode_parts(features.values, target.hidden_size)
        assert features.base_len == base_len
        assert values is not None
        assert torch.allclose(values.flatten(), expected, atol=5e-3)


def test_replay_stops_where_the_loop_stops(target: LoadedModel, pool: SsmPool) -> None:
    prompts = make_prompts(6, seed=9)
    batch = make_batch(target, prompts)
    # Stop tokens that come soon, so that answers end inside accepted paths.
    asks = [replace(ask, stop_token_ids=frozenset(range(3, 30))) for ask in make_asks(prompts, 0.0)]
    traces = write_traces(target, batch, asks, Way.GREEDY)
    assert any(len(trace.output_ids) < MAX_TOKENS for trace in traces)
    makers = [pool.ssms[0].grower("4,2,1")]
    played = Loop(batch, asks, Way.GREEDY, target.vocab_size).play(Speculator(makers), _budget((4, 2, 1)))
    assert [one.trace.output_ids for one in played] == [trace.output_ids for trace in traces]
    assert replay(Speculator(makers), traces, Way.GREEDY, _budget((4, 2, 1))) == [one.counts for one in played]


def test_sessions_are_released_when_a_measurement_ends(target: LoadedModel, pool: SsmPool) -> None:
    prompts = make_prompts(2)
    batch, asks = make_batch(target, prompts), make_asks(prompts, 0.0)
    traces = write_traces(target, batch, asks, Way.GREEDY)
    replay(Speculator([pool.ssms[0].grower()]), traces, Way.GREEDY, Budget(6, 3))
    find_places(pool.ssms[0], traces, Way.GREEDY, max_depth=3)
    assert pool.ssms[0].model.num_cached_sessions == 0


def test_accepted_path_ends_at_the_last_token_that_is_known() -> None:
    tree = TokenTree((9, 1, 2, 3, 4), (-1, 0, 1, 2, 0))
    assert accepted_path(tree, [1, 2]) == (1, 2)
    assert accepted_path(tree, [4, 2]) == (4,)
    assert accepted_path(tree, [5]) == ()


def test_naive_children_do_not_know_the_noise_of_the_target() -> None:
    (ask,) = make_asks(make_prompts(1), 1.0)
    assert Way.COUPLED.told_sampling(ask.sampling) == ask.sampling
    assert Way.NAIVE_SAMPLED.told_sampling(ask.sampling).seed != ask.sampling.seed
    assert Way.NAIVE_TOP_K.told_sampling(ask.sampling).is_greedy
