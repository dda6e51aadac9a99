"""Merging members under one budget."""

from __future__ import annotations

import pytest

from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.jobs import Budget
from specgrove_drafter.members.random_trees import RandomMember
from specgrove_drafter.trees.proposal import Proposal, select_tree
from support.drafter_fakes import ScriptedMember, chain_proposal, make_job


def test_paths_are_merged_and_carry_every_proposer() -> None:
    members = [ScriptedMember("a", [(7, 8)]), ScriptedMember("b", [(7, 9)], prob=0.4)]
    [draft] = Ensemble(members).draft([make_job()])
    masks = {draft.tree.token_path(node): draft.tree.members[node] for node in range(1, draft.tree.num_nodes)}
    assert masks == {(7,): 0b11, (7, 8): 0b01, (7, 9): 0b10}


def test_the_larger_estimate_of_a_shared_path_counts() -> None:
    sure = chain_proposal([(7, 8)], 0.9)
    unsure = chain_proposal([(7, 8), (5,)], 0.5)
    tree = select_tree(3, [(1, unsure), (2, sure)], Budget(2, 4))
    assert tree.paths() == {(), (7,), (7, 8)}


def test_a_failing_member_costs_only_its_own_proposals() -> None:
    broken = ScriptedMember("broken", failure=RuntimeError("out of order"))
    [draft] = Ensemble([broken, ScriptedMember("ok", [(7,)])]).draft([make_job()])
    assert draft.tree.paths() == {(), (7,)}
    assert broken.released == [make_job().session]


def test_nobody_with_anything_to_say_gives_the_bare_root() -> None:
    [draft] = Ensemble([ScriptedMember(chains=())]).draft([make_job((1, 2, 5))])
    assert draft.tree.num_draft_nodes == 0
    assert draft.tree.token_ids == (5,)


def test_an_ensemble_is_behind_when_one_member_is() -> None:
    [draft] = Ensemble([ScriptedMember("a"), ScriptedMember("b", is_behind=True)]).draft([make_job()])
    assert draft.is_behind


def test_estimates_above_one_are_clamped() -> None:
    proposal = Proposal()
    node = proposal.add(-1, 4, 0.3)
    assert proposal.log_path_probs[node] == 0.0


def test_an_ensemble_needs_a_member() -> None:
    with pytest.raises(ValueError, match="1 to 31 members"):
        Ensemble([])


def test_random_trees_fill_the_budget_and_repeat_with_the_seed() -> None:
    [first] = Ensemble([RandomMember(1000, seed=4)]).draft([make_job()])
    [again] = Ensemble([RandomMember(1000, seed=4)]).draft([make_job()])
    [other] = Ensemble([RandomMember(1000, seed=5)]).draft([make_job()])
    assert first.tree == again.tree
    assert first.tree != other.tree
    assert first.tree.num_draft_nodes == 8
    assert first.tree.max_depth <= 4
