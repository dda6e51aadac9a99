"""The token tree and its merge, by example."""

from __future__ import annotations

import pytest

from specgrove.errors import InvalidInput
from specgrove.tree import ExpansionConfig, TokenTree, TreeBuilder, is_chain, merge

# The drawing at the top of tree.py.
THE, CAT, SAT, ON, IS, DOG = 10, 11, 12, 13, 14, 15
DRAWN = TokenTree((THE, CAT, SAT, ON, IS, DOG), (-1, 0, 1, 2, 1, 0))


def test_depths_follow_the_parents() -> None:
    assert DRAWN.depths == (0, 1, 2, 3, 2, 1)
    assert DRAWN.max_depth == 3
    assert (DRAWN.num_nodes, DRAWN.num_draft_nodes) == (6, 5)


def test_children_are_in_node_order() -> None:
    assert DRAWN.children() == ((1, 5), (2, 4), (3,), (), (), ())


def test_a_node_is_its_path() -> None:
    assert DRAWN.node_path(3) == (1, 2, 3)
    assert DRAWN.token_path(3) == (CAT, SAT, ON)
    assert DRAWN.token_path(0) == ()
    assert DRAWN.paths() == {(), (CAT,), (CAT, SAT), (CAT, SAT, ON), (CAT, IS), (DOG,)}


def test_a_node_sees_its_ancestors_and_itself() -> None:
    assert DRAWN.ancestor_rows() == ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 4), (0, 5))


@pytest.mark.parametrize(
    ("token_ids", "parents", "members", "complaint"),
    [
        ((), (), (), "needs a root"),
        ((1, 2), (-1,), (), "equally long"),
        ((1, 2), (-1, 0), (0,), "equally long"),
        ((1, 2), (0, 0), (), "node 0 is the root"),
        ((1, 2), (-1, 1), (), "parents come first"),
        ((1, 2, 3), (-1, 2, 0), (), "parents come first"),
        ((1, 2), (-1, -1), (), "parents come first"),
        ((1, 2, 2), (-1, 0, 0), (), "repeats token 2 under parent 0"),
    ],
)
def test_what_is_no_tree_is_refused(
    token_ids: tuple[int, ...], parents: tuple[int, ...], members: tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        TokenTree(token_ids, parents, members)


def test_one_token_may_stand_under_two_parents() -> None:
    tree = TokenTree((1, 2, 3, 2), (-1, 0, 0, 2))
    assert tree.paths() == {(), (2,), (3,), (3, 2)}


def test_merge_keeps_a_shared_path_once_and_ors_its_members() -> None:
    left = TokenTree((1, 2, 3), (-1, 0, 1), (0, 0b01, 0b01))
    right = TokenTree((1, 4, 2, 5), (-1, 0, 0, 2), (0, 0b10, 0b10, 0b10))
    both = merge([left, right])
    assert both.token_ids == (1, 2, 4, 3, 5)
    assert both.parents == (-1, 0, 0, 1, 1)
    assert both.members == (0, 0b11, 0b10, 0b01, 0b10)


def test_trees_under_different_roots_do_not_merge() -> None:
    with pytest.raises(InvalidInput, match="do not merge"):
        merge([TokenTree.root_only(1), TokenTree.root_only(2)])


def test_nothing_to_merge_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one tree"):
        merge([])


def test_truncation_takes_whole_subtrees_below_the_depth() -> None:
    assert DRAWN.truncated(max_draft_nodes=9, max_depth=1).paths() == {(), (CAT,), (DOG,)}
    assert DRAWN.truncated(max_draft_nodes=2, max_depth=9).paths() == {(), (CAT,), (CAT, SAT)}
    assert DRAWN.truncated(max_draft_nodes=0, max_depth=9) == TokenTree.root_only(THE)
    assert DRAWN.truncated(max_draft_nodes=5, max_depth=3) == DRAWN


def test_the_builder_finds_what_it_has() -> None:
    builder = TreeBuilder(1)
    first = builder.add(0, 7, 0b1)
    assert builder.add(0, 7, 0b100) == first
    assert builder.find(0, 7) == first
    assert builder.find(0, 8) is None
    assert builder.build().members == (0, 0b101)


def test_a_chain_is_told_from_a_tree() -> None:
    assert is_chain(TokenTree.root_only(1))
    assert is_chain(TokenTree.from_paths(1, [(2, 3, 4)]))
    assert not is_chain(TokenTree.from_paths(1, [(2, 3), (4,)]))


@pytest.mark.parametrize("text", ["1,1,3", "<1,1,3>", " <1, 1, 3> "])
def test_an_expansion_config_is_read_as_the_paper_writes_it(text: str) -> None:
    config = ExpansionConfig.parse(text)
    assert config.widths == (1, 1, 3)
    assert (config.max_depth, config.num_draft_nodes) == (3, 1 + 1 + 3)
    assert str(config) == "<1,1,3>"


def test_the_shape_of_the_paper_has_twenty_nodes() -> None:
    assert ExpansionConfig.parse("1,1,3,1,1,1,1,1").num_draft_nodes == 20


@pytest.mark.parametrize("text", ["", "1,0", "1,-1", "a", "1,,2", "<>"])
def test_a_wrong_expansion_config_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expansion config"):
        ExpansionConfig.parse(text)
