"""Merging drafts with their laws: the union by path against a brute-force oracle, for any drafts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from specgrove.draft import ChildLaw
from specgrove.draft_laws import LawfulTree, check_laws, merge_lawful, num_draws, shares
from specgrove.errors import InvalidInput
from specgrove.tree import ROOT, TokenTree, TreeBuilder

VOCAB_SIZE = 6
Path = tuple[int, ...]
# What a law is, whatever the numbers of its nodes: where it stands, what it says, what was drawn.
Meaning = tuple[Path, tuple[int, ...], tuple[float, ...], tuple[Path, ...]]


@st.composite
def lawful_trees(draw: st.DrawFn) -> LawfulTree:
    """Trees as honest drafters make them: laws below the root or earlier draws, several of them below one node."""
    builder = TreeBuilder(1)
    laws = []
    for _ in range(draw(st.integers(0, 5))):
        parent = draw(st.sampled_from(range(builder.num_nodes)))
        ids = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=4, unique=True))
        count = draw(st.integers(1, len(ids)))
        drawn = draw(st.permutations(ids))[:count]
        draws = tuple(builder.add(parent, token_id, 1) for token_id in drawn)
        laws.append(ChildLaw(parent, tuple(ids), (1 / len(ids),) * len(ids), draws))
    return builder.build(), tuple(laws)


def meanings(tree: TokenTree, laws: tuple[ChildLaw, ...]) -> list[Meaning]:
    return [
        (tree.token_path(law.parent), law.token_ids, law.probs, tuple(tree.token_path(node) for node in law.draws))
        for law in laws
    ]


def oracle(parts: list[LawfulTree], max_draws: int) -> list[Meaning]:
    """All laws of each part while its draws fit its share, part after part."""
    expected: list[Meaning] = []
    for (tree, laws), share in zip(parts, shares(max_draws, len(parts)), strict=True):
        kept = 0
        for meaning in meanings(tree, laws):
            kept += len(meaning[3])
            if kept > share:
                break
            expected.append(meaning)
    return expected


@given(st.lists(lawful_trees(), min_size=1, max_size=4), st.integers(0, 24))
def test_the_union_by_path_keeps_every_draw_of_every_law(parts: list[LawfulTree], max_draws: int) -> None:
    tree, laws = merge_lawful(parts, max_draws)
    expected = oracle(parts, max_draws)
    assert meanings(tree, laws) == expected
    assert tree.paths() == {(), *(path for _, _, _, paths in expected for path in paths)}
    assert num_draws(laws) <= max_draws


@given(st.lists(lawful_trees(), min_size=1, max_size=4), st.integers(0, 24))
def test_a_merged_tree_is_as_well_formed_as_its_parts(parts: list[LawfulTree], max_draws: int) -> None:
    tree, laws = merge_lawful(parts, max_draws)
    for one_tree, one_laws in [*parts, (tree, laws)]:
        checked = check_laws(one_tree, one_laws, vocab_size=VOCAB_SIZE, max_draws=100)
        assert [law.draws for law in checked] == [law.draws for law in one_laws]


@given(lawful_trees(), lawful_trees(), st.integers(0, 24))
def test_what_is_kept_of_one_draft_does_not_depend_on_another(
    one: LawfulTree, other: LawfulTree, max_draws: int
) -> None:
    """The cut looks at the number of drafts, never at what another one drew."""
    nothing: LawfulTree = (TokenTree.root_only(1), ())
    with_other = meanings(*merge_lawful([one, other], max_draws))
    alone = meanings(*merge_lawful([one, nothing], max_draws))
    assert with_other[: len(alone)] == alone


@given(lawful_trees(), lawful_trees())
def test_duplicate_proposals_stand_in_each_law(one: LawfulTree, other: LawfulTree) -> None:
    tree, laws = merge_lawful([one, other], 100)
    counts = Counter(tree.token_path(node) for law in laws for node in law.draws)
    expected = Counter(
        part.token_path(node) for part, part_laws in (one, other) for law in part_laws for node in law.draws
    )
    assert counts == expected


small = st.integers(-1, 8)


@given(
    lawful_trees(),
    st.lists(
        st.builds(
            ChildLaw,
            small,
            st.lists(small, max_size=4).map(tuple),
            st.lists(st.floats(width=32), max_size=4).map(tuple),
            st.lists(small, max_size=4).map(tuple),
        ),
        max_size=3,
    ),
)
def test_whatever_laws_come_in_they_are_refused_or_fit(part: LawfulTree, invented: list[ChildLaw]) -> None:
    tree, laws = part
    for candidate in ((*laws, *invented), tuple(invented)):
        try:
            checked = check_laws(tree, candidate, vocab_size=VOCAB_SIZE, max_draws=100)
        except InvalidInput:
            continue
        named = {node for law in checked for node in law.draws}
        assert named == set(range(1, tree.num_nodes))
        for law in checked:
            assert all(prob > 0 for prob in law.probs)
            assert {tree.token_ids[node] for node in law.draws} <= set(law.token_ids)
            assert all(tree.parents[node] == law.parent for node in law.draws)
            assert law.parent == ROOT or law.parent in named
