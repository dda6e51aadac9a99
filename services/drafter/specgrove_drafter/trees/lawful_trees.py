"""The one tree of an ensemble under rule `mss`: every member's draws with the laws they come from.

Members whose children are drawn and members that propose without chance (prompt lookup) stand side by side: what a
member proposes without chance is a law with one token of probability 1 for each node, which is tried like any other.
Of such proposals the likeliest may be picked, for they are no draws. Of draws nothing is ever picked: each member has
its share of the budget in advance, by numbers that do not depend on what was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specgrove.draft import ChildLaw
from specgrove.draft_laws import LawfulTree, merge_lawful, shares
from specgrove.tree import NO_PARENT, ROOT, TokenTree
from specgrove_drafter.jobs import Budget, DraftJob
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal, select_tree


def certain_budget(budget: Budget, num_drawing: int) -> Budget:
    """What the members that propose without chance may fill together, beside `num_drawing` that draw."""
    return budget.capped(budget.max_nodes // 2 if num_drawing else budget.max_nodes, budget.max_depth)


def jobs_of_drawing(job: DraftJob, certain: Sequence[Proposal], num_drawing: int) -> list[DraftJob]:
    """`job` as each of `num_drawing` members is asked it: with its share of the budget where laws are wanted.

    The shares are what is left beside the proposals that were made without chance.
    """
    if not job.needs_laws or job.is_catching_up:
        return [job] * num_drawing
    chosen = select_tree(job.root_token_id, [(0, part) for part in certain], certain_budget(job.budget, num_drawing))
    budgets = _drawing_budgets(job.budget, chosen.num_draft_nodes, num_drawing)
    return [replace(job, budget=budget) for budget in budgets]


def _drawing_budgets(budget: Budget, num_certain: int, num_drawing: int) -> list[Budget]:
    if num_drawing == 0:
        return []
    return [budget.capped(share, budget.max_depth) for share in shares(budget.max_nodes - num_certain, num_drawing)]


def lawful_tree(
    root_token_id: int,
    certain: Sequence[tuple[int, Proposal]],  # (member bit, proposal) of those that propose without chance
    drawn: Sequence[tuple[int, Proposal]],  # of those that draw, each within its share
    budget: Budget,
) -> LawfulTree:
    """The tree and its laws; certain proposals first, then the drawing members in order."""
    chosen = select_tree(root_token_id, certain, certain_budget(budget, len(drawn)))
    budgets = _drawing_budgets(budget, chosen.num_draft_nodes, len(drawn))
    parts = [_certain_part(chosen)]
    for (bit, proposal), share in zip(drawn, budgets, strict=True):
        if proposal.laws:
            parts.append(_drawn_part(root_token_id, bit, proposal))
        else:  # made without chance after all
            parts.append(_certain_part(select_tree(root_token_id, [(bit, proposal)], share)))
    # Each part is within its share already: nothing is cut here.
    return merge_lawful(parts, max_draws=len(parts) * budget.max_nodes)


def point_mass(tree: TokenTree, node: int) -> ChildLaw:
    """The law of a node that was proposed without chance."""
    return ChildLaw(tree.parents[node], (tree.token_ids[node],), (1.0,), (node,))


def _certain_part(tree: TokenTree) -> LawfulTree:
    return tree, tuple(point_mass(tree, node) for node in range(1, tree.num_nodes))


def _drawn_part(root_token_id: int, bit: int, proposal: Proposal) -> LawfulTree:
    """One drawing member's tree: its nodes are those of the proposal, shifted by the root."""
    shift = ROOT - BELOW_ROOT
    tree = TokenTree(
        (root_token_id, *proposal.token_ids),
        (NO_PARENT, *(parent + shift for parent in proposal.parents)),
        (0, *(bit * proposal.sources(node) for node in range(len(proposal)))),
    )
    laws = tuple(
        ChildLaw(law.parent + shift, law.token_ids, law.probs, tuple(node + shift for node in law.draws))
        for law in proposal.laws
    )
    return tree, laws
