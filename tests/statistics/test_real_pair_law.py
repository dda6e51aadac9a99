"""The law of sampled tokens on the real pair: the target, the shipped SSM with prompt lookup, and whole trees."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.sampling.params import SamplingParams, SpeculationOptions
from specgrove.sampling.rules import Rule
from specgrove.sampling.target_choice import target_probs
from specgrove.text import Tokenizer
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef
from specgrove_drafter.members.feature_maps import joint_layout, read_layout
from specgrove_drafter.members.loaded_ssm import joint_feed, load_ssm, stacked, stacks_of
from specgrove_drafter.members.prompt_lookup import PromptLookupMember
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy
from support.engine_stand import InProcessDrafter, Mirror, running_stand
from support.live_cluster import target_folder

SSM_FOLDERS = Path(__file__).parents[2] / "services/drafter/models"
TEXT = "The weather today is very"
NUM_SEEDS = 160
SAMPLING = SamplingParams(temperature=0.9, top_k=6)
LEVEL = 1e-4

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return load_model(str(target_folder()))


@pytest.fixture
def ensemble(target: LoadedModel) -> Ensemble:
    folders = sorted(config.parent for config in SSM_FOLDERS.glob("*/config.json"))
    sent = joint_layout([read_layout(folder) for folder in folders])
    ssms = [load_ssm(folder.name, str(folder), "auto", "cpu", target.vocab_size, sent) for folder in folders]
    [pool] = stacks_of(ssms)
    model = RuntimeDraftModel(
        stacked(pool), target_vocab_size=target.vocab_size, max_cached_tokens=16384, feed=joint_feed(pool)
    )
    names = [ssm.name for ssm in pool]
    return Ensemble([SsmMember("pool", model, BestFirstPolicy(BestFirst()), part_names=names), PromptLookupMember()])


def _drafter(ensemble: Ensemble) -> InProcessDrafter:
    """The ensemble behind the engine's own link, without a wire."""

    def respond(drafter: InProcessDrafter, mirror: Mirror) -> None:
        if mirror.budget.max_nodes:
            [draft] = ensemble.draft([_job(mirror)])
            drafter.send(replace(mirror.draft(draft.tree), laws=draft.laws))

    return InProcessDrafter(respond=respond)


def _job(mirror: Mirror) -> DraftJob:
    opening = mirror.opening
    return DraftJob(
        session=SessionRef(1, mirror.key),
        token_ids=mirror.token_ids,
        base_len=len(mirror.token_ids),
        base_hash=extend_hash(EMPTY_HASH, mirror.token_ids),
        opened_len=len(opening.token_ids),
        sampling=opening.sampling,
        stop_token_ids=frozenset(opening.stop_token_ids),
        budget=Budget(mirror.budget.max_nodes, mirror.budget.max_depth),
        arrived_s=0.0,
        rule=opening.rule,
    )


def _law_after(target: LoadedModel, token_ids: list[int]) -> dict[int, float]:
    """The target's law of the next token, from a forward of its own."""
    cache = target.new_cache(max_tokens=64, block_size=16)
    size = len(token_ids)
    seq = cache.new_sequence()
    cache.reserve(seq, size)
    wants = [False] * (size - 1) + [True]
    rows = SequenceRows(seq, token_ids, range(size), range(-1, size - 1), wants)
    [probs] = target_probs(PackedForward(target, cache).run([rows]), SAMPLING)
    return {int(token_id): float(probs[token_id]) for token_id in probs.nonzero().flatten()}


def _p_value(counts: Counter[int], law: dict[int, float]) -> float:
    assert set(counts) <= set(law)
    total = sum(counts.values())
    return float(stats.chisquare([counts[token_id] for token_id in law], [total * p for p in law.values()]).pvalue)


@pytest.mark.parametrize("rule", [Rule.MSS, Rule.NAIVE])
def test_the_first_two_tokens_have_the_targets_law(target: LoadedModel, ensemble: Ensemble, rule: Rule) -> None:
    prompt = Tokenizer.load(target_folder()).encode(TEXT)
    options = SpeculationOptions(rule=rule)
    with torch.inference_mode():
        first_law = _law_after(target, prompt)
        likeliest = max(first_law, key=first_law.__getitem__)
        second_law = _law_after(target, [*prompt, likeliest])
    settings = {"kv_tokens": 8192, "block_size": 16, "max_nodes": 5, "max_depth": 3}
    with running_stand(target, _drafter(ensemble), **settings) as stand:
        running = [
            stand.start(prompt, 3, sampling=replace(SAMPLING, seed=seed), speculation=options)
            for seed in range(NUM_SEEDS)
        ]
        answers = [one.answer() for one in running]
        assert stand.sample("specgrove:stale_drafts_total", reason="malformed") == 0
    assert sum(answer.stats.num_accepted_tokens for answer in answers) > NUM_SEEDS / 8
    pairs = [answer.token_ids[:2] for answer in answers]
    assert _p_value(Counter(first for first, _ in pairs), first_law) > LEVEL
    assert _p_value(Counter(second for first, second in pairs if first == likeliest), second_law) > LEVEL
