"""Whose a node is survives the merge of several drafters' trees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specgrove.draft import ChildLaw, Draft
from specgrove.tree import TokenTree, TreeBuilder
from specgrove_verifier.mailbox import MEMBER_BITS, Base, DraftBudget, DraftMailbox

BASE = Base(10, 777, 0)
masks = st.integers(0, 2**MEMBER_BITS - 1)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Few tokens, so that the trees of different drafters share paths; some are the same altogether."""
    builder = TreeBuilder(BASE.last_token_id)
    for _ in range(draw(st.integers(0, 8))):
        builder.add(draw(st.integers(0, builder.num_nodes - 1)), draw(st.integers(0, 2)), draw(masks))
    return builder.build()


offers = st.lists(st.tuples(st.integers(1, 4), trees()), max_size=6)  # a drafter may come twice: its newest counts


@given(offers, st.integers(1, 20), st.integers(1, 9))
def test_every_node_names_those_who_proposed_its_path(
    offered: list[tuple[int, TokenTree]], max_nodes: int, max_depth: int
) -> None:
    mailbox = DraftMailbox(vocab_size=3)
    mailbox.expect(BASE, DraftBudget(max_nodes, max_depth), frozenset(range(1, 5)))
    newest: dict[int, TokenTree] = {}
    for drafter, tree in offered:
        draft = Draft(1, BASE.length, BASE.hash, tree.token_ids[1:], tree.parents[1:], tree.members[1:])
        if mailbox.offer(drafter, draft).is_kept:
            newest[drafter] = tree
    taken = mailbox.take()
    if taken is None:
        assert all(tree.num_draft_nodes == 0 for tree in newest.values())
        return
    assert taken.num_draft_nodes <= max_nodes
    for node in range(1, taken.num_nodes):
        assert named_by(taken, node, mailbox.taken_from) == proposed_by(newest, taken.token_path(node))
    union = frozenset[tuple[int, ...]]().union(*(tree.paths() for tree in newest.values()))
    assert taken.paths() <= union
    assert taken.num_draft_nodes == min(max_nodes, len(union) - 1)


def named_by(tree: TokenTree, node: int, taken_from: tuple[int, ...]) -> set[tuple[int, int]]:
    """(drafter, bit) pairs that the merged node names."""
    return {
        (taken_from[place // MEMBER_BITS], place % MEMBER_BITS)
        for place in range(tree.members[node].bit_length())
        if tree.members[node] >> place & 1
    }


def proposed_by(trees_of: dict[int, TokenTree], path: tuple[int, ...]) -> set[tuple[int, int]]:
    """(drafter, bit) pairs, found by searching every drafter's tree for the path."""
    return {
        (drafter, bit)
        for drafter, tree in trees_of.items()
        for node in range(1, tree.num_nodes)
        if tree.token_path(node) == path
        for bit in range(MEMBER_BITS)
        if tree.members[node] >> bit & 1
    }


@given(masks, masks)
def test_a_child_that_two_drafters_drew_stands_in_both_their_laws_and_names_both(mask: int, other: int) -> None:
    mailbox = DraftMailbox(vocab_size=3, needs_laws=True)
    mailbox.expect(BASE, DraftBudget(4, 2), frozenset({1, 2}))
    for drafter, members in ((1, mask), (2, other)):
        law = ChildLaw(0, (1, 2), (0.5, 0.5), (1,))
        assert mailbox.offer(drafter, Draft(1, BASE.length, BASE.hash, (2,), (0,), (members,), laws=(law,))).is_kept
    taken = mailbox.take()
    assert taken is not None
    assert taken.token_ids == (0, 2)
    assert [law.draws for law in mailbox.taken_laws] == [(1,), (1,)]
    assert taken.members[1] == mask | other << MEMBER_BITS
