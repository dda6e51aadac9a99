# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The walk of verification in Triton: one program for each tree, which looks at all nodes for each step down."""

import torch
import triton
import triton.language as tl

from specgrove_kernels.tree_walk import Walks


def walk_trees(
    choices: torch.Tensor,  # int64 [N], the target's token after each packed node
    token_ids: torch.Tensor,  # int64 [N]
    parents: torch.Tensor,  # int32 [N], number within the tree, below the node's own; NO_NODE at the root
    tree_starts: torch.Tensor,  # int32 [B + 1], first node of each tree; a tree has at least its root
    *,
    max_depth: int,  # of the deepest tree
    max_nodes: int,  # of the largest tree
) -> Walks:
    """Each tree's accepted path: from the root, the child with the chosen token while there is one."""
    num_trees = len(tree_starts) - 1
    device = choices.device
    walks = Walks(
        torch.empty((num_trees, max_depth), dtype=torch.int32, device=device),
        torch.empty(num_trees, dtype=torch.int32, device=device),
        torch.empty(num_trees, dtype=torch.int64, device=device),
        torch.empty(num_trees, dtype=torch.int32, device=device),
    )
    _walk[(num_trees,)](
        choices,
        token_ids,
        parents,
        tree_starts,
        walks.accepted_nodes,
        walks.num_accepted,
        walks.own_token_ids,
        walks.is_bonus,
        max_depth,
        NODES=triton.next_power_of_2(max_nodes),
    )
    return walks


@triton.jit
def _walk(
    choices,
    token_ids,
    parents,
    tree_starts,
    accepted_out,
    counts_out,
    own_out,
    bonus_out,
    max_depth,
    NODES: tl.constexpr,
):
    tree = tl.program_id(0)
    start = tl.load(tree_starts + tree)
    num_nodes = tl.load(tree_starts + tree + 1) - start
    nodes = tl.arange(0, NODES)
    is_node = nodes < num_nodes
    tokens = tl.load(token_ids + start + nodes, mask=is_node, other=-1)
    above = tl.load(parents + start + nodes, mask=is_node, other=-1)
    node = start * 0
    count = start * 0
    for depth in range(max_depth):
        choice = tl.load(choices + start + node)
        # Where the path has ended nothing matches, and goes on to match nothing.
        matches = is_node & (above == node) & (tokens == choice)
        child = tl.min(tl.where(matches, nodes, NODES), axis=0)
        is_child = child < NODES
        tl.store(accepted_out + tree * max_depth + depth, tl.where(is_child, child, -1))
        node = tl.where(is_child, child, node)
        count = count + is_child.to(tl.int32)
    has_children = tl.max((is_node & (above == node)).to(tl.int32), axis=0)
    tl.store(counts_out + tree, count)
    tl.store(own_out + tree, tl.load(choices + start + node))
    tl.store(bonus_out + tree, 1 - has_children)
