"""Trees are what the verifier accepts, for any law, any members, any budget."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from specgrove.tree import ExpansionConfig, TokenTree
from specgrove_drafter.jobs import Budget
from specgrove_drafter.members.random_trees import RandomMember
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, ExpansionPolicy, GrowthPolicy
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal, select_tree
from support.drafter_fakes import TableModel, ask, make_job

TOKENS = st.integers(0, 6)
PROBS = st.floats(1e-6, 1.0)
LAWS = st.dictionaries(TOKENS, st.dictionaries(TOKENS, PROBS, max_size=5), max_size=7)
BUDGETS = st.builds(Budget, st.integers(0, 12), st.integers(0, 5))
POLICIES = st.one_of(
    st.builds(
        BestFirstPolicy,
        st.builds(BestFirst, st.integers(1, 5), st.integers(1, 5), st.floats(0.0, 0.9)),
    ),
    st.builds(
        ExpansionPolicy,
        st.builds(ExpansionConfig, st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)),
    ),
)


@st.composite
def proposals(draw: st.DrawFn) -> Proposal:
    proposal, paths = Proposal(), set[tuple[int, int]]()
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(BELOW_ROOT, len(proposal) - 1))
        token_id = draw(TOKENS)
        if (parent, token_id) not in paths:
            paths.add((parent, token_id))
            proposal.add(parent, token_id, math.log(draw(PROBS)))
    return proposal


def path_scores(proposal: Proposal) -> dict[tuple[int, ...], float]:
    paths: list[tuple[int, ...]] = []
    for token_id, parent in zip(proposal.token_ids, proposal.parents, strict=True):
        paths.append(((*paths[parent], token_id)) if parent != BELOW_ROOT else (token_id,))
    return dict(zip(paths, proposal.log_path_probs, strict=True))


@settings(deadline=None)
@given(st.lists(proposals(), max_size=4), BUDGETS)
def test_the_selected_tree_is_the_best_the_members_offer(parts: list[Proposal], budget: Budget) -> None:
    tree = select_tree(3, [(1 << bit, part) for bit, part in enumerate(parts)], budget)
    assert tree.num_draft_nodes <= max(budget.max_nodes, 0)
    assert tree.max_depth <= budget.max_depth
    offered: dict[tuple[int, ...], float] = {}
    for part in parts:
        for path, score in path_scores(part).items():
            offered[path] = max(score, offered.get(path, -math.inf))
    in_reach = {path: score for path, score in offered.items() if len(path) <= budget.max_depth}
    chosen = tree.paths() - {()}
    assert chosen <= in_reach.keys()
    assert len(chosen) == min(budget.max_nodes, len(in_reach))
    left = [score for path, score in in_reach.items() if path not in chosen]
    assert not left or not chosen or min(in_reach[path] for path in chosen) >= max(left)
    for node in range(1, tree.num_nodes):
        proposers = {bit for bit, part in enumerate(parts) if tree.token_path(node) in path_scores(part)}
        assert {bit for bit in range(len(parts)) if tree.members[node] >> bit & 1} == proposers


@settings(deadline=None)
@given(LAWS, POLICIES, BUDGETS, st.sets(TOKENS), st.integers(0, 6))
def test_grown_trees_keep_to_their_limits(
    laws: dict[int, dict[int, float]], policy: GrowthPolicy, budget: Budget, stops: set[int], depth_limit: int
) -> None:
    model = TableModel(laws, depth_limit=depth_limit)
    job = make_job(budget=budget, stop_token_ids=frozenset(stops))
    [draft] = ask(SsmMember("ssm", model, policy), [job])
    tree: TokenTree = select_tree(job.root_token_id, [(1, draft.proposal)], budget)
    assert tree.num_draft_nodes <= max(budget.max_nodes, 0)
    assert tree.max_depth <= min(budget.max_depth, depth_limit)
    for path in tree.paths():
        assert not stops & set(path[:-1])
    # No more forwards than levels, and no node is run twice.
    assert len(model.rounds) <= max(budget.max_depth - 1, 0)
    rows = [(node.parent_row, node.token_id) for nodes in model.rounds for node in nodes]
    assert len(rows) == len(set(rows))


@settings(deadline=None)
@given(BUDGETS, st.integers(0, 1000))
def test_random_trees_are_valid(budget: Budget, seed: int) -> None:
    job = make_job(budget=budget)
    [draft] = ask(RandomMember(5, seed), [job])
    tree = select_tree(job.root_token_id, [(1, draft.proposal)], budget)
    assert tree.max_depth <= budget.max_depth
    assert tree.num_draft_nodes <= budget.max_nodes
