"""The walk over packed trees against the verdict of the library, tree by tree."""

from __future__ import annotations

import random

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgrove.sampling.verification import verify_tree
from specgrove.tree import TokenTree, TreeBuilder
from specgrove_kernels.backend import KernelSet
from specgrove_kernels.tree_walk import NO_NODE, Walks


def _walk(kernels: KernelSet, trees: list[TokenTree], choices: list[list[int]]) -> Walks:
    starts = [0]
    for tree in trees:
        starts.append(starts[-1] + tree.num_nodes)
    return kernels.walk_trees(
        torch.tensor([choice for chosen in choices for choice in chosen]),
        torch.tensor([token for tree in trees for token in tree.token_ids]),
        torch.tensor([parent for tree in trees for parent in tree.parents], dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        max_depth=max(1, *(tree.max_depth for tree in trees)),
        max_nodes=max(tree.num_nodes for tree in trees),
    )


def _random_tree(num_nodes: int, draw: random.Random) -> TokenTree:
    builder = TreeBuilder(draw.randrange(3))
    while builder.num_nodes < num_nodes:
        builder.add(draw.randrange(builder.num_nodes), draw.randrange(num_nodes))
    return builder.build()


def _agreeing_choices(tree: TokenTree, draw: random.Random) -> list[int]:
    """Mostly a child's token, so that paths grow long."""
    tokens = [[tree.token_ids[child] for child in children] for children in tree.children()]
    return [draw.choice(own) if own and draw.random() < 0.9 else draw.randrange(5) for own in tokens]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 17, 63, 64, 65, 256]), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_every_tree_gets_the_librarys_verdict(kernels: KernelSet, sizes: list[int], seed: int) -> None:
    draw = random.Random(seed)
    trees = [_random_tree(size, draw) for size in sizes]
    choices = [_agreeing_choices(tree, draw) for tree in trees]
    walks = _walk(kernels, trees, choices)
    for number, (tree, chosen) in enumerate(zip(trees, choices, strict=True)):
        verdict = verify_tree(tree, chosen)
        count = int(walks.num_accepted[number])
        path = walks.accepted_nodes[number].tolist()
        assert tuple(path[:count]) == verdict.accepted_nodes
        assert set(path[count:]) <= {NO_NODE}
        assert int(walks.own_token_ids[number]) == verdict.own_token_id
        assert bool(walks.is_bonus[number]) == verdict.is_bonus


def test_a_full_chain_ends_with_a_bonus_and_a_broken_one_with_a_recovered_token(kernels: KernelSet) -> None:
    chain = TokenTree.from_paths(9, [[1, 2, 3]])
    walks = _walk(kernels, [chain, chain, TokenTree.root_only(9)], [[1, 2, 3, 4], [1, 5, 3, 4], [7]])
    assert walks.accepted_nodes.tolist() == [[1, 2, 3], [1, NO_NODE, NO_NODE], [NO_NODE] * 3]
    assert walks.num_accepted.tolist() == [3, 1, 0]
    assert walks.own_token_ids.tolist() == [4, 5, 7]
    assert walks.is_bonus.tolist() == [1, 0, 1]


def test_the_own_token_of_the_root_is_no_child_of_itself(kernels: KernelSet) -> None:
    """The root's own id may come up as its choice; node 0 is nobody's child."""
    walks = _walk(kernels, [TokenTree.from_paths(4, [[5]])], [[4, 4]])
    assert walks.num_accepted.tolist() == [0]
