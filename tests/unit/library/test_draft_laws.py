"""Which laws a verifier believes, and how the laws of several drafts become those of one tree."""

from __future__ import annotations

import math

import pytest

from specgrove.draft import ChildLaw
from specgrove.draft_laws import MAX_LAW_LEN, check_laws, merge_lawful, shares
from specgrove.errors import InvalidInput
from specgrove.tree import TokenTree

#   root ─┬─ 5 ── 7
#         └─ 6
TREE = TokenTree((9, 5, 6, 7), (-1, 0, 0, 1))
ROOT_LAW = ChildLaw(0, (4, 5, 6), (0.2, 0.5, 0.3), (2, 1))
LAWS = (ROOT_LAW, ChildLaw(1, (7,), (1.0,), (3,)))


def _checked(*laws: ChildLaw, max_draws: int = 4) -> tuple[ChildLaw, ...]:
    return check_laws(TREE, laws, vocab_size=20, max_draws=max_draws)


def test_laws_that_fit_are_taken_with_probabilities_that_sum_to_one() -> None:
    nearly = ChildLaw(0, (4, 5, 6), (0.2, 0.5, 0.3004), (2, 1))
    first, second = _checked(nearly, LAWS[1])
    assert sum(first.probs) == pytest.approx(1.0, abs=1e-12)
    assert first.draws == (2, 1)
    assert second == LAWS[1]


def test_a_node_may_be_a_draw_of_two_laws() -> None:
    assert len(_checked(*LAWS, ChildLaw(0, (5,), (1.0,), (1,)))) == 3


@pytest.mark.parametrize(
    "laws",
    [
        (),
        (ROOT_LAW,),
        (LAWS[1], ROOT_LAW),
        (*LAWS, ChildLaw(4, (5,), (1.0,), (1,))),
        (*LAWS, ChildLaw(-1, (9,), (1.0,), (0,))),
        (*LAWS, ChildLaw(0, (), (), ())),
        (*LAWS, ChildLaw(0, (5,), (1.0,), ())),
        (*LAWS, ChildLaw(0, (5,), (1.0,), (3,))),
        (*LAWS, ChildLaw(0, (5,), (1.0,), (0,))),
        (*LAWS, ChildLaw(0, (5,), (1.0,), (7,))),
        (*LAWS, ChildLaw(0, (5,), (1.0,), (2,))),
        (ChildLaw(0, (5, 6), (0.5, 0.5), (1, 2, 1)), LAWS[1]),
        (ChildLaw(0, (5, 6, 5), (0.4, 0.3, 0.3), (1, 2)), LAWS[1]),
        (ChildLaw(0, (5, 6, 20), (0.4, 0.3, 0.3), (1, 2)), LAWS[1]),
        (ChildLaw(0, (5, 6), (0.5, 0.3, 0.2), (1, 2)), LAWS[1]),
        (ChildLaw(0, (5, 6), (0.7, 0.4), (1, 2)), LAWS[1]),
        (ChildLaw(0, (5, 6), (0.5, 0.4), (1, 2)), LAWS[1]),
        (ChildLaw(0, (5, 6, 4), (0.6, 0.4, 0.0), (1, 2)), LAWS[1]),
        (ChildLaw(0, (5, 6, 4), (0.6, 0.5, -0.1), (1, 2)), LAWS[1]),
        (ChildLaw(0, (5, 6), (math.nan, 0.5), (1, 2)), LAWS[1]),
        (ChildLaw(0, (5, 6), (math.inf, 0.5), (1, 2)), LAWS[1]),
    ],
)
def test_laws_that_do_not_fit_the_tree_are_malformed(laws: tuple[ChildLaw, ...]) -> None:
    with pytest.raises(InvalidInput) as raised:
        _checked(*laws)
    assert raised.value.field == "laws"


def test_a_law_has_a_bounded_length() -> None:
    length = MAX_LAW_LEN + 1
    long = ChildLaw(0, tuple(range(length)), (1 / length,) * length, (1, 2))
    with pytest.raises(InvalidInput) as raised:
        check_laws(TREE, (long, LAWS[1]), vocab_size=200, max_draws=4)
    assert raised.value.field == "laws"


def test_draws_count_against_the_budget_rather_than_nodes() -> None:
    with pytest.raises(InvalidInput) as raised:
        _checked(*LAWS, ChildLaw(0, (5, 6), (0.5, 0.5), (1, 2)))
    assert raised.value.field == "max_nodes"


def test_one_draft_keeps_everything() -> None:
    assert merge_lawful([(TREE, LAWS)], 4) == (TREE, LAWS)


def test_a_path_that_two_drafts_hold_keeps_a_draw_for_each() -> None:
    other = TokenTree((9, 6, 8), (-1, 0, 1))
    other_laws = (ChildLaw(0, (6, 3), (0.9, 0.1), (1,)), ChildLaw(1, (8,), (1.0,), (2,)))
    tree, laws = merge_lawful([(TREE, LAWS), (other, other_laws)], 8)
    assert tree.paths() == TREE.paths() | other.paths()
    shared = next(node for node in range(1, tree.num_nodes) if tree.token_path(node) == (6,))
    assert [law.draws for law in laws if shared in law.draws] == [laws[0].draws, (shared,)]
    assert [law.probs for law in laws if law.parent == 0] == [ROOT_LAW.probs, (0.9, 0.1)]


def test_what_is_over_the_share_is_cut_by_whole_laws_from_the_end() -> None:
    """Two nodes each: the law below node 1 would be the third draw. Neither estimates nor equal draws are looked at."""
    tree, laws = merge_lawful([(TREE, LAWS), (TREE, LAWS)], 4)
    assert tree.paths() == {(), (5,), (6,)}
    assert [law.probs for law in laws] == [ROOT_LAW.probs] * 2


def test_a_draft_that_stays_below_its_share_leaves_nothing_to_others() -> None:
    small = (TokenTree((9, 5), (-1, 0)), (ChildLaw(0, (5,), (1.0,), (1,)),))
    _, laws = merge_lawful([small, (TREE, LAWS)], 4)
    assert len(laws) == 2


def test_shares_sum_to_the_budget_and_differ_by_one_at_most() -> None:
    assert shares(8, 3) == [3, 3, 2]
    assert shares(1, 2) == [1, 0]
    assert shares(4, 1) == [4]
