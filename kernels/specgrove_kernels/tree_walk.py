"""The walk of verification over packed trees, in plain torch: which nodes are accepted, and the target's own token.

The same walk as `specgrove.sampling.verification.verify_tree` (a test holds the two together), for many trees at once
and with its result where the KV compaction wants it: on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

NO_NODE = -1


@dataclass(frozen=True, slots=True)
class Walks:
    """What the target accepts of each of B trees."""

    accepted_nodes: torch.Tensor  # int32 [B, max_depth], numbers within the tree, top down, then `NO_NODE`
    num_accepted: torch.Tensor  # int32 [B]
    own_token_ids: torch.Tensor  # int64 [B], bonus or recovered
    is_bonus: torch.Tensor  # int32 [B], 1 where the path ended at a leaf


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
    accepted = torch.full((num_trees, max_depth), NO_NODE, dtype=torch.int32, device=device)
    counts = torch.zeros(num_trees, dtype=torch.int32, device=device)
    own = torch.zeros(num_trees, dtype=torch.int64, device=device)
    bonus = torch.zeros(num_trees, dtype=torch.int32, device=device)
    starts = tree_starts.tolist()
    for number in range(num_trees):
        nodes = slice(starts[number], starts[number + 1])
        chosen, tokens, above = choices[nodes].tolist(), token_ids[nodes].tolist(), parents[nodes].tolist()
        child_of = {(above[node], tokens[node]): node for node in range(1, len(tokens))}
        node = depth = 0
        while (child := child_of.get((node, chosen[node]))) is not None:
            accepted[number, depth] = child
            node, depth = child, depth + 1
        counts[number], own[number], bonus[number] = depth, chosen[node], int(node not in above)
    return Walks(accepted, counts, own, bonus)
