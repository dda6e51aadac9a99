"""The walk along the target's choices."""

from __future__ import annotations

from specgrove.sampling.verification import Verdict, verify_tree
from specgrove.tree import TokenTree

A, B, C, D = 1, 2, 3, 4
#   root ─┬─ A ── B
#         └─ C ── A
TREE = TokenTree((9, A, B, C, A), (-1, 0, 1, 0, 3))


def test_a_whole_path_earns_the_bonus_token() -> None:
    verdict = verify_tree(TREE, [A, B, D, 0, 0])
    assert verdict == Verdict((1, 2), D, is_bonus=True)
    assert verdict.committed_token_ids(TREE) == (A, B, D)


def test_a_miss_recovers_the_targets_token() -> None:
    assert verify_tree(TREE, [D, B, D, A, D]) == Verdict((), D, is_bonus=False)
    verdict = verify_tree(TREE, [A, D, 0, 0, 0])
    assert verdict == Verdict((1,), D, is_bonus=False)
    assert verdict.committed_token_ids(TREE) == (A, D)


def test_the_walk_takes_the_branch_that_was_chosen() -> None:
    assert verify_tree(TREE, [C, 0, 0, A, B]) == Verdict((3, 4), B, is_bonus=True)


def test_the_same_token_elsewhere_does_not_count() -> None:
    """B is a child of A only: chosen at the root it is a miss, though a node carries it."""
    assert verify_tree(TREE, [B, B, B, B, B]) == Verdict((), B, is_bonus=False)


def test_a_bare_root_gives_the_bonus_token() -> None:
    assert verify_tree(TokenTree.root_only(7), [D]) == Verdict((), D, is_bonus=True)
