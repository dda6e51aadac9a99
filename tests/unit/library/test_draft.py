"""A draft from the wire becomes a tree only when it is one and keeps to its budget."""

from __future__ import annotations

import pytest

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.draft import Draft
from specgrove.errors import InvalidInput
from specgrove.tree import TokenTree


def _draft(token_ids: tuple[int, ...], parents: tuple[int, ...], members: tuple[int, ...] = ()) -> Draft:
    return Draft(1, 5, 99, token_ids, parents, members)


def _read(draft: Draft) -> TokenTree:
    return draft.to_tree(50, vocab_size=60, max_nodes=3, max_depth=2)


def test_the_root_is_the_last_committed_token() -> None:
    assert _read(_draft((7, 8), (0, 1))) == TokenTree((50, 7, 8), (-1, 0, 1))


def test_an_empty_draft_is_a_bare_root() -> None:
    assert _read(_draft((), ())) == TokenTree.root_only(50)


@pytest.mark.parametrize(
    ("draft", "field"),
    [
        (_draft((1, 2, 3, 4), (0, 0, 0, 0)), "max_nodes"),
        (_draft((1, 2, 3), (0, 1, 2)), "max_depth"),
        (_draft((1, 2), (0,)), "parents"),
        (_draft((1, 2), (0, 1), (1,)), "parents"),
        (_draft((1, 60), (0, 1)), "token_ids"),
        (_draft((1, 2**32 - 1), (0, 1)), "token_ids"),
        (_draft((-1, 2), (0, 1)), "token_ids"),
    ],
)
def test_what_is_wrong_is_named(draft: Draft, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        _read(draft)
    assert caught.value.field == field


@pytest.mark.parametrize("parents", [(1, 0), (0, 2), (0, 2**32 - 1), (-1, 0)])
def test_parents_come_first(parents: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        _read(_draft((1, 2), parents))
    assert caught.value.field not in ("max_nodes", "max_depth")


def test_the_size_is_checked_before_anything_is_built() -> None:
    with pytest.raises(InvalidInput) as caught:
        _read(_draft(tuple(range(100_000)), ()))
    assert caught.value.field == "max_nodes"


def test_the_hash_does_not_depend_on_how_the_sequence_is_cut() -> None:
    whole = extend_hash(EMPTY_HASH, range(10))
    assert extend_hash(extend_hash(EMPTY_HASH, range(4)), range(4, 10)) == whole
    assert 0 <= whole < 2**61


def test_the_hash_knows_order_length_and_zeros() -> None:
    hashes = {extend_hash(EMPTY_HASH, ids) for ids in [(), (0,), (0, 0), (1, 2), (2, 1), (1, 2, 0), (0, 1, 2)]}
    assert len(hashes) == 7


def test_the_hash_keeps_its_value() -> None:
    """Pods of two versions must agree on it."""
    assert extend_hash(EMPTY_HASH, (1, 2, 3)) == 831_364_340_774_607_106
