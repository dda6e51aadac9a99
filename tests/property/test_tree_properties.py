"""Trees, merges, masks and the wire against brute force."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from specgrove import wire
from specgrove.proto.v1 import speculation_pb2
from specgrove.sampling.verification import verify_tree
from specgrove.tree import ROOT, TokenTree, TreeBuilder, merge

Path = tuple[int, ...]


@st.composite
def trees(draw: st.DrawFn, *, max_nodes: int = 24, vocab_size: int = 4, root: int | None = None) -> TokenTree:
    """Any tree: each new node hangs under any earlier one. Few tokens, so that paths meet."""
    builder = TreeBuilder(draw(st.integers(0, vocab_size - 1)) if root is None else root)
    for _ in range(draw(st.integers(0, max_nodes))):
        parent = draw(st.integers(0, builder.num_nodes - 1))
        builder.add(parent, draw(st.integers(0, vocab_size - 1)), draw(st.integers(0, 2**32 - 1)))
    return builder.build()


def _closure(tree: TokenTree) -> torch.Tensor:  # bool [N, N]
    """Reflexive transitive closure of the parent relation, by repeated products: nothing of the tree's own code."""
    size = tree.num_nodes
    steps = torch.eye(size)
    for node in range(1, size):
        steps[node, tree.parents[node]] = 1
    reach = steps
    for _ in range(size.bit_length()):
        reach = ((reach @ reach) > 0).float()
    return reach.bool()


@given(trees())
def test_ancestors_are_the_transitive_closure_of_parents(tree: TokenTree) -> None:
    expected = [tuple(row.nonzero().flatten().tolist()) for row in _closure(tree)]
    assert list(tree.ancestor_rows()) == expected
    assert [len(row) - 1 for row in expected] == list(tree.depths)


@given(trees())
def test_every_node_is_found_at_the_end_of_its_path(tree: TokenTree) -> None:
    assert len(tree.paths()) == tree.num_nodes
    for node in range(tree.num_nodes):
        assert (ROOT, *tree.node_path(node)) == tree.ancestor_rows()[node]
    assert TokenTree.from_paths(tree.token_ids[ROOT], tree.paths()).paths() == tree.paths()


@given(st.lists(trees(root=0), min_size=1, max_size=5))
def test_merge_is_the_union_of_paths(members: list[TokenTree]) -> None:
    merged = merge(members)
    assert merged.paths() == frozenset().union(*(tree.paths() for tree in members))
    assert merged.num_nodes == len(merged.paths())


@given(st.lists(trees(root=0), min_size=1, max_size=4))
def test_merge_says_who_proposed_each_path(members: list[TokenTree]) -> None:
    proposers: dict[Path, int] = {}
    for tree in members:
        for node in range(tree.num_nodes):
            path = tree.token_path(node)
            proposers[path] = proposers.get(path, 0) | tree.members[node]
    merged = merge(members)
    assert {merged.token_path(node): merged.members[node] for node in range(merged.num_nodes)} == proposers


@given(st.lists(trees(root=0), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_merge_does_not_care_for_order_grouping_or_repetition(members: list[TokenTree], random: object) -> None:
    shuffled = [*members, members[0]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    paths = merge(members).paths()
    assert merge(shuffled).paths() == paths
    assert merge([merge(members[:1]), merge(members)]).paths() == paths


@given(st.lists(trees(root=0), min_size=1, max_size=4), st.integers(0, 12))
def test_a_merge_cut_short_has_the_first_nodes_of_every_tree(members: list[TokenTree], num_turns: int) -> None:
    cut = merge(members).truncated(max_draft_nodes=num_turns * len(members), max_depth=24)
    for tree in members:
        first = {tree.token_path(node) for node in range(1, min(num_turns + 1, tree.num_nodes))}
        assert first <= cut.paths()


@given(trees(), st.integers(0, 30), st.integers(0, 8))
def test_truncation_keeps_a_tree_within_its_limits(tree: TokenTree, max_nodes: int, max_depth: int) -> None:
    cut = tree.truncated(max_draft_nodes=max_nodes, max_depth=max_depth)
    assert cut.num_draft_nodes <= max_nodes
    assert cut.max_depth <= max_depth
    assert cut.paths() <= tree.paths()
    shallow = sum(depth <= max_depth for depth in tree.depths) - 1
    assert cut.num_draft_nodes == min(max_nodes, shallow)  # nothing is cut for nothing


@given(trees(), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_a_tree_survives_the_wire(tree: TokenTree, session_key: int, base_len: int, base_hash: int) -> None:
    message = wire.tree_to_proto(session_key, base_len, base_hash, tree, 0.5)
    arrived = speculation_pb2.TokenTree.FromString(message.SerializeToString())
    draft = wire.draft_from_proto(arrived, max_nodes=tree.num_draft_nodes)
    assert (draft.session_key, draft.base_len, draft.base_hash, draft.draft_s) == (
        session_key,
        base_len,
        base_hash,
        0.5,
    )
    received = wire.tree_from_proto(
        arrived, root_token_id=tree.token_ids[ROOT], vocab_size=4, max_nodes=tree.num_draft_nodes, max_depth=24
    )
    assert received.token_ids == tree.token_ids
    assert received.parents == tree.parents
    assert received.members[1:] == tree.members[1:]


@given(trees(vocab_size=3), st.lists(st.integers(0, 2), min_size=25, max_size=25))
def test_the_walk_is_the_longest_path_of_choices(tree: TokenTree, choices: list[int]) -> None:
    verdict = verify_tree(tree, choices[: tree.num_nodes])
    node, path = ROOT, []
    # Brute force over paths: follow what the target wants as long as a node of the tree says the same.
    while any(tree.token_path(other) == (*path, choices[node]) for other in range(tree.num_nodes)):
        path.append(choices[node])
        node = next(other for other in range(tree.num_nodes) if tree.token_path(other) == tuple(path))
    assert verdict.committed_token_ids(tree) == (*path, choices[node])
    assert verdict.is_bonus == (not tree.children()[node])
    assert all(tree.parents[child] == parent for parent, child in pairwise((ROOT, *verdict.accepted_nodes)))
