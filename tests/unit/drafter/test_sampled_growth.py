"""Trees of draws: how many are drawn where is settled before anything is drawn, and nothing drawn is picked over."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy import stats

from specgrove.draft_laws import MAX_LAW_LEN, check_laws, num_draws
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.tree import ExpansionConfig
from specgrove_drafter.ensemble import Ensemble, EnsembleDraft
from specgrove_drafter.jobs import Budget, DraftJob
from specgrove_drafter.members.law import LawRow, rank_children
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.child_sampler import ChildSampler, law_of
from specgrove_drafter.trees.draw_plans import BestFirstPlan, WidthPlan
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, Children, ExpansionPolicy, GrowthPolicy
from specgrove_drafter.trees.proposal import Proposal
from support.drafter_fakes import ScriptedMember, TableModel, make_job

VOCAB_SIZE = 12
TEN = dict.fromkeys(range(10), 0.1)
# After token 3 all of ten tokens are as likely; after the others one is likelier than the rest.
LAWS = {
    3: TEN,
    **{token: {(token + 1) % VOCAB_SIZE: 0.5, 3: 0.3, 11: 0.2} for token in range(VOCAB_SIZE - 1) if token != 3},
    11: {0: 0.6, 3: 0.4},
}
SAMPLED = SamplingParams(temperature=1.0)
BEST_FIRST = BestFirstPolicy(BestFirst(min_path_prob=0.1))


def _job(budget: Budget = Budget(8, 4), rule: Rule = Rule.MSS, **changes: object) -> DraftJob:
    return replace(make_job(budget=budget, sampling=SAMPLED), rule=rule, **changes)


def _member(seed: int, policy: GrowthPolicy = BEST_FIRST, name: str = "ssm") -> SsmMember:
    return SsmMember(name, TableModel(LAWS), policy, sampler=ChildSampler(seed))


def _draft(ensemble: Ensemble, job: DraftJob) -> EnsembleDraft:
    [draft] = ensemble.draft([job])
    return draft


def test_draws_without_replacement_have_the_law_of_ordered_samples() -> None:
    probs, sampler = (0.5, 0.3, 0.2), ChildSampler(3)
    counts = Counter(tuple(sampler.draw(probs, 2)) for _ in range(2000))
    expected = {
        (first, second): probs[first] * probs[second] / (1 - probs[first])
        for first in range(3)
        for second in range(3)
        if first != second
    }
    observed = [counts[pair] for pair in expected]
    assert sum(observed) == 2000
    assert stats.chisquare(observed, [2000 * prob for prob in expected.values()]).pvalue > 1e-4


def test_no_draw_repeats_and_no_two_samplers_agree() -> None:
    probs = (0.25,) * 4
    one, other = ChildSampler(1), ChildSampler(2)
    draws = [tuple(one.draw(probs, 9)) for _ in range(20)]
    assert all(sorted(draw) == [0, 1, 2, 3] for draw in draws)
    assert len(set(draws)) > 10
    assert draws != [tuple(other.draw(probs, 9)) for _ in range(20)]
    assert ChildSampler.fresh().draw(probs, 4) is not None


def test_the_law_that_is_sent_is_float32_and_the_one_drawn_from() -> None:
    token_ids, probs = law_of(Children((7, 8, 9), (-0.1, -3.0, -80.0)))
    assert token_ids == (7, 8)
    assert probs == tuple(torch.tensor(probs, dtype=torch.float32).tolist())
    assert sum(probs) == pytest.approx(1.0, abs=1e-6)


def test_every_node_of_a_draft_is_a_draw_of_a_law_that_the_verifier_takes() -> None:
    ensemble = Ensemble([_member(1), _member(2, ExpansionPolicy(ExpansionConfig((2, 1))), "other")])
    for max_nodes in range(1, 14):
        job = _job(Budget(max_nodes, 4))
        draft = _draft(ensemble, job)
        laws = check_laws(draft.tree, draft.laws, vocab_size=VOCAB_SIZE, max_draws=max_nodes)
        assert num_draws(laws) >= draft.tree.num_draft_nodes > 0
        assert draft.tree.max_depth <= 4


@pytest.mark.parametrize("policy", [BEST_FIRST, ExpansionPolicy(ExpansionConfig((3, 2, 1)))])
def test_the_number_of_draws_and_of_forwards_depends_on_the_budget_alone(policy: GrowthPolicy) -> None:
    seen = set()
    for seed in range(30):
        model = TableModel(LAWS)
        member = SsmMember("ssm", model, policy, sampler=ChildSampler(seed))
        draft = _draft(Ensemble([member]), _job(Budget(9, 3)))
        by_depth = Counter(draft.tree.depths[law.parent] for law in draft.laws for _ in law.draws)
        seen.add((tuple(sorted(by_depth.items())), len(model.rounds)))
    assert len(seen) == 1


def test_draws_are_not_picked_by_their_likelihood() -> None:
    """The likeliest of more draws than the budget holds would hardly ever leave out the likeliest token."""
    ensemble = Ensemble([SsmMember("ssm", TableModel({3: {0: 0.4, 1: 0.3, 2: 0.2, 4: 0.1}}), BEST_FIRST)])
    counts = Counter(_draft(ensemble, _job(Budget(1, 1))).tree.token_ids[1] for _ in range(1000))
    assert stats.chisquare([counts[token] for token in (0, 1, 2, 4)], [400, 300, 200, 100]).pvalue > 1e-4


def test_members_draw_each_for_themselves_within_their_shares() -> None:
    draft = _draft(Ensemble([_member(1), _member(2, name="second")]), _job(Budget(9, 4)))
    sizes = Counter[int]()
    for law in draft.laws:
        sizes[min(draft.tree.members[node] & -draft.tree.members[node] for node in law.draws)] += len(law.draws)
    assert num_draws(draft.laws) == 9
    same = [law.draws for law in draft.laws if law.parent == 0]
    assert len(same) == 2
    assert same[0] != same[1]


def test_what_is_proposed_without_chance_is_a_law_of_one_token() -> None:
    lookup = ScriptedMember("lookup", chains=[(7, 8), (6,)])
    draft = _draft(Ensemble([lookup, _member(1)]), _job(Budget(8, 4)))
    certain = [law for law in draft.laws if law.probs == (1.0,)]
    assert [draft.tree.token_path(law.draws[0]) for law in certain] == [(7,), (6,), (7, 8)]
    assert num_draws(draft.laws) == 8
    check_laws(draft.tree, draft.laws, vocab_size=VOCAB_SIZE, max_draws=8)


def test_certain_proposals_take_at_most_half_of_the_budget_beside_a_member_that_draws() -> None:
    lookup = ScriptedMember("lookup", chains=[(7, 8, 9, 7, 8, 9)])
    beside = _draft(Ensemble([lookup, _member(1)]), _job(Budget(6, 9)))
    alone = _draft(Ensemble([lookup]), _job(Budget(6, 9)))
    assert sum(law.probs == (1.0,) for law in beside.laws) == 3
    assert len(alone.laws) == 6


@pytest.mark.parametrize("policy", [BEST_FIRST, ExpansionPolicy(ExpansionConfig((2, 1)))])
def test_a_session_at_the_end_of_the_ssm_s_context_costs_the_others_nothing(policy: GrowthPolicy) -> None:
    ended = SsmMember("ssm", TableModel(LAWS, depth_limit=0), policy, sampler=ChildSampler(1))
    [draft] = ended.draft([_job()], [Proposal()])
    assert len(draft.proposal) == 0


def test_nothing_is_drawn_below_a_stop_token() -> None:
    job = _job(Budget(12, 4), stop_token_ids=frozenset(range(10)))
    draft = _draft(Ensemble([_member(1)]), job)
    assert draft.tree.max_depth == 1


def test_a_client_s_shape_replaces_the_drafters_own() -> None:
    draft = _draft(Ensemble([_member(1)]), _job(Budget(12, 4), expansion=(2, 1)))
    assert Counter(draft.tree.depths) == {0: 1, 1: 2, 2: 2}
    ranked = _draft(Ensemble([_member(1)]), _job(Budget(12, 4), rule=Rule.COUPLED, expansion=(2, 1)))
    assert Counter(ranked.tree.depths) == {0: 1, 1: 2, 2: 2}


def test_greedy_and_coupled_drafts_carry_no_laws() -> None:
    greedy = replace(make_job(), rule=Rule.MSS)
    assert _draft(Ensemble([_member(1)]), greedy).laws == ()
    assert _draft(Ensemble([_member(1)]), _job(rule=Rule.COUPLED)).laws == ()


def test_naive_children_are_the_likeliest_or_drawn_as_the_setting_says() -> None:
    laws = {3: {0: 0.4, 1: 0.3, 2: 0.2, 4: 0.1}}
    job = _job(Budget(2, 1), rule=Rule.NAIVE)
    topk = Ensemble([SsmMember("ssm", TableModel(laws), BEST_FIRST)])
    assert {_draft(topk, job).tree.token_ids for _ in range(20)} == {(3, 0, 1)}
    sampled = Ensemble([SsmMember("ssm", TableModel(laws), BEST_FIRST, naive_children="sampled")])
    assert len({_draft(sampled, job).tree.paths() for _ in range(40)}) > 3


def test_plans_spend_the_whole_budget_and_are_deeper_for_larger_ones() -> None:
    small, large = (BestFirstPlan.for_budget(n, 8, 0.05).totals for n in (2, 24))
    assert (sum(small), sum(large)) == (2, 24)
    assert len(small) < len(large)
    assert BestFirstPlan.for_budget(24, 1, 0.05).totals[0] <= 24
    assert BestFirstPlan.for_budget(12, 5, 0.9).totals[1:] == ()


def test_a_round_gives_its_draws_to_the_likeliest_paths() -> None:
    plan = BestFirstPlan((4, 3))
    assert plan.allot(1, {5: 0.5, 6: 0.01, 7: 0.3}, 9) == {5: 2, 7: 1}
    assert plan.allot(1, {5: 0.5}, 2) == {5: 2}
    assert plan.allot(2, {5: 0.5}, 9) == {}
    assert WidthPlan((3, 2)).allot(1, {5: 0.1, 6: 0.5, 7: 0.3}, 5) == {6: 2, 7: 2, 5: 1}


def test_the_law_below_a_row_is_the_draft_s_after_temperature_and_truncation_without_noise() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0]])
    sampling = SamplingParams(temperature=0.5, top_k=3, seed=77)
    [children] = rank_children(logits, [LawRow(sampling, 9, Rule.MSS)], 5)
    expected = (logits[0, :3] / 0.5).softmax(-1)
    assert children.token_ids == (0, 1, 2)
    assert torch.tensor(children.log_probs).exp().tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_a_law_is_cut_to_what_travels() -> None:
    [children] = rank_children(torch.randn(1, 500), [LawRow(SAMPLED, 9, Rule.MSS)], MAX_LAW_LEN)
    assert len(children.token_ids) == MAX_LAW_LEN
    assert torch.tensor(children.log_probs).exp().sum() == pytest.approx(1.0, abs=1e-5)
