"""The walk: which path of a token tree the target accepts, and the token it adds of its own.

    choice[node] = the target's token after the node's path          tree           choices        verdict
    start at the root; while a child carries the choice: take it    root ─┬─ a ── b   root: a        accepted  a
    then append the choice of the last node                                └─ c        a: d           own token d

Accepted tokens are the draft tokens kept. The target's own token is the *bonus* token when the path ended at a leaf and
the *recovered* token when children were there and none matched. SpecInfer, algorithm 2 (VerifyGreedy); with
choices drawn with shared noise the same walk is lossless for sampling, whatever made the tree (section "Exactness"
of the design; Daliri, Musco, Suresh 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgrove.tree import ROOT, TokenTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one step for one generation."""

    accepted_nodes: tuple[int, ...]  # node numbers, root not counted, top down
    own_token_id: int  # bonus or recovered
    is_bonus: bool  # the path ended at a leaf

    def committed_token_ids(self, tree: TokenTree) -> tuple[int, ...]:
        return (*(tree.token_ids[node] for node in self.accepted_nodes), self.own_token_id)


def verify_tree(tree: TokenTree, choices: Sequence[int]) -> Verdict:
    """Walk `tree` along `choices` (the target's token after each node, [num_nodes])."""
    child_of = {(tree.parents[node], tree.token_ids[node]): node for node in range(1, tree.num_nodes)}
    has_children = set(tree.parents)
    accepted: list[int] = []
    node = ROOT
    while (child := child_of.get((node, choices[node]))) is not None:
        accepted.append(child)
        node = child
    return Verdict(tuple(accepted), choices[node], is_bonus=node not in has_children)
