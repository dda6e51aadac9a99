"""The rules in the engine: which tokens stay the same, what drafters are told, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgrove.draft import ChildLaw
from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SamplingParams, SpeculationOptions
from specgrove.sampling.rules import Rule
from specgrove.tree import TokenTree
from specgrove_verifier.drafter_pool import OpenSession
from support.engine_stand import InProcessDrafter, Mirror, random_trees, running_stand
from support.lawful_drafts import flat_law, lawful_drafter, skewed_law
from support.tiny_models import VOCAB_SIZE

PROMPT = [5, 9, 4]
MAX_TOKENS = 20
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.3, seed=11)


def _lawful(seed: int = 1) -> InProcessDrafter:
    return lawful_drafter([flat_law(60), skewed_law(60, 1)], (2, 2), seed)


def _by(rule: Rule | None) -> SpeculationOptions:
    return SpeculationOptions(rule=rule)


@pytest.mark.parametrize("rule", list(Rule))
def test_greedy_tokens_are_the_same_by_every_rule(target: LoadedModel, rule: Rule) -> None:
    with running_stand(target) as stand:
        expected = stand.generate(PROMPT, MAX_TOKENS).token_ids
    with running_stand(target, InProcessDrafter(random_trees(VOCAB_SIZE))) as stand:
        answer = stand.generate(PROMPT, MAX_TOKENS, speculation=_by(rule))
        assert answer.token_ids == expected
        assert answer.stats.num_drafts > 5
        stand.assert_empty()


def test_naive_tokens_do_not_depend_on_the_drafts_and_are_not_those_of_coupled(target: LoadedModel) -> None:
    with running_stand(target) as stand:
        plain = {
            rule: stand.generate(PROMPT, MAX_TOKENS, sampling=SAMPLED, speculation=_by(rule)).token_ids for rule in Rule
        }
    with running_stand(target, InProcessDrafter(random_trees(VOCAB_SIZE))) as stand:
        drafted = stand.generate(PROMPT, MAX_TOKENS, sampling=SAMPLED, speculation=_by(Rule.NAIVE)).token_ids
    assert drafted == plain[Rule.NAIVE]
    assert plain[Rule.NAIVE] == plain[Rule.MSS]  # without drafts both are plain decoding under the target's own noise
    assert plain[Rule.NAIVE] != plain[Rule.COUPLED]


def test_mss_repeats_with_the_seed_and_the_drafts(target: LoadedModel) -> None:
    answers = []
    for seed in (1, 1, 2):
        with running_stand(target, _lawful(seed)) as stand:
            answers.append(stand.generate(PROMPT, MAX_TOKENS, sampling=SAMPLED, speculation=_by(Rule.MSS)))
            assert answers[-1].stats.num_draft_tokens > 20
            assert stand.sample("specgrove:spec_decode_num_drafts_by_rule_total", rule="mss") > 0
            assert stand.sample("specgrove:stale_drafts_total", reason="malformed") == 0
            stand.assert_empty()
    assert answers[0].token_ids == answers[1].token_ids


def test_mss_goes_on_after_a_failover_at_the_same_positions(target: LoadedModel) -> None:
    """Without drafts the decisions are a function of seed and position: what is resumed is what would have come."""
    with running_stand(target) as stand:
        whole = stand.generate(PROMPT, MAX_TOKENS, sampling=SAMPLED, speculation=_by(Rule.MSS)).token_ids
        resumed = stand.generate(
            PROMPT, MAX_TOKENS, sampling=SAMPLED, speculation=_by(Rule.MSS), committed=whole[:7]
        ).token_ids
    assert whole[:7] + resumed == whole


@pytest.mark.parametrize(("setting", "asked", "rule"), [("mss", None, Rule.MSS), ("mss", Rule.NAIVE, Rule.NAIVE)])
def test_a_request_s_rule_wins_over_the_setting(
    target: LoadedModel, setting: str, asked: Rule | None, rule: Rule
) -> None:
    drafter = InProcessDrafter()
    with running_stand(target, drafter, rule=setting, max_draft_wait_ms=1.0) as stand:
        stand.generate(PROMPT, 4, sampling=SAMPLED, speculation=SpeculationOptions(rule=asked, expansion=(3, 1)))
    [opening] = [update for update in drafter.updates if isinstance(update, OpenSession)]
    assert opening.rule is rule
    assert opening.expansion == (3, 1)


@pytest.mark.parametrize("rule", list(Rule))
def test_drafters_know_the_seed_only_where_they_share_the_noise(target: LoadedModel, rule: Rule) -> None:
    drafter = InProcessDrafter()
    with running_stand(target, drafter, max_draft_wait_ms=1.0) as stand:
        stand.generate(PROMPT, 4, sampling=SAMPLED, speculation=_by(rule))
    [opening] = [update for update in drafter.updates if isinstance(update, OpenSession)]
    assert opening.sampling == (SAMPLED if rule is Rule.COUPLED else replace(SAMPLED, seed=0))


def test_drafts_without_laws_are_refused_under_mss_and_the_answer_is_that_of_no_drafts(target: LoadedModel) -> None:
    with running_stand(target) as stand:
        expected = stand.generate(PROMPT, MAX_TOKENS, sampling=SAMPLED, speculation=_by(Rule.MSS)).token_ids
    with running_stand(target, InProcessDrafter(random_trees(VOCAB_SIZE)), max_draft_wait_ms=20.0) as stand:
        answer = stand.generate(PROMPT, MAX_TOKENS, sampling=SAMPLED, speculation=_by(Rule.MSS))
        assert answer.token_ids == expected
        assert answer.stats.num_drafts == 0
        assert stand.sample("specgrove:stale_drafts_total", reason="malformed") > 5


def test_more_draws_than_the_budget_are_refused(target: LoadedModel) -> None:
    def respond(drafter: InProcessDrafter, mirror: Mirror) -> None:
        """One node, drawn from many laws."""
        if mirror.budget.max_nodes:
            bare = mirror.draft(TokenTree((mirror.token_ids[-1], 7), (-1, 0)))
            laws = (ChildLaw(0, (7,), (1.0,), (1,)),) * (mirror.budget.max_nodes + 1)
            drafter.send(replace(bare, laws=laws))

    with running_stand(target, InProcessDrafter(respond=respond), max_draft_wait_ms=20.0) as stand:
        answer = stand.generate(PROMPT, 8, sampling=SAMPLED, speculation=_by(Rule.MSS))
        assert answer.stats.num_drafts == 0
        assert stand.sample("specgrove:stale_drafts_total", reason="over_budget") > 2


def test_two_drafters_share_the_budget_of_draws(target: LoadedModel) -> None:
    drafters = [lawful_drafter([flat_law(60)], (2, 2, 2), seed, number=seed) for seed in (1, 2)]
    settings = {"drafters_per_session": 2, "max_nodes": 6, "max_depth": 3}
    with running_stand(target, *drafters, **settings) as stand:
        answer = stand.generate(PROMPT, MAX_TOKENS, sampling=SAMPLED, speculation=_by(Rule.MSS))
        assert answer.stats.num_drafts > 5
        assert answer.stats.num_draft_tokens <= 6 * answer.stats.num_drafts
        assert stand.sample("specgrove:stale_drafts_total", reason="malformed") == 0
        stand.assert_empty()
