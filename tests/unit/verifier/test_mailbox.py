"""The draft mailbox, outcome by outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specgrove.draft import ChildLaw, Draft
from specgrove.tree import TokenTree
from specgrove_verifier.mailbox import NO_DRAFT, Base, DraftBudget, DraftMailbox, DraftOutcome

BASE = Base(10, 777, 50)
A, B, STRANGER = 1, 2, 3


def _draft(
    token_ids: tuple[int, ...] = (5, 6),
    parents: tuple[int, ...] = (0, 1),
    *,
    base_len: int = 10,
    base_hash: int = 777,
) -> Draft:
    return Draft(1, base_len, base_hash, token_ids, parents)


@pytest.fixture
def mailbox() -> DraftMailbox:
    box = DraftMailbox(vocab_size=60)
    box.expect(BASE, DraftBudget(4, 3), frozenset({A, B}))
    return box


@pytest.mark.parametrize(
    ("drafter", "draft", "outcome", "has_answered"),
    [
        (A, _draft(), DraftOutcome.ACCEPTED, True),
        (A, _draft((), ()), DraftOutcome.ACCEPTED, True),
        (STRANGER, _draft(), DraftOutcome.FOREIGN, False),
        (A, _draft(base_len=9), DraftOutcome.LATE, False),
        (A, _draft(base_len=9, base_hash=1), DraftOutcome.LATE, False),
        (A, _draft(base_len=11), DraftOutcome.DIVERGENT, False),
        (A, _draft(base_hash=778), DraftOutcome.DIVERGENT, False),
        (A, _draft((1, 2, 3, 4, 5), (0, 0, 0, 0, 0)), DraftOutcome.OVER_BUDGET, True),
        (A, _draft((1, 2, 3, 4), (0, 1, 2, 3)), DraftOutcome.OVER_BUDGET, True),
        (A, _draft((60, 2), (0, 1)), DraftOutcome.MALFORMED, True),
        (A, _draft((1, 2), (1, 0)), DraftOutcome.MALFORMED, True),
        (A, _draft((1, 1), (0, 0)), DraftOutcome.MALFORMED, True),
        (A, _draft((1, 2), (0,)), DraftOutcome.MALFORMED, True),
    ],
)
def test_every_draft_has_its_outcome(
    mailbox: DraftMailbox, drafter: int, draft: Draft, outcome: DraftOutcome, has_answered: bool
) -> None:
    assert mailbox.offer(drafter, draft) is outcome
    assert (drafter not in mailbox.missing()) == (has_answered or drafter == STRANGER)


def test_the_newest_of_a_drafter_wins(mailbox: DraftMailbox) -> None:
    mailbox.offer(A, _draft((1,), (0,)))
    assert mailbox.offer(A, _draft((2,), (0,))) is DraftOutcome.REPLACED
    assert mailbox.take() == TokenTree((50, 2), (-1, 0))


def test_a_bad_draft_does_not_take_the_good_one_away(mailbox: DraftMailbox) -> None:
    mailbox.offer(A, _draft((1,), (0,)))
    mailbox.offer(A, _draft((60,), (0,)))
    assert mailbox.take() == TokenTree((50, 1), (-1, 0))


def test_trees_of_several_drafters_are_merged_within_the_budget(mailbox: DraftMailbox) -> None:
    mailbox.offer(B, _draft((5, 7, 8), (0, 1, 0)))
    mailbox.offer(A, _draft((5, 6, 9), (0, 1, 2)))
    tree = mailbox.take()
    assert tree is not None
    assert tree.paths() == {(), (5,), (5, 6), (5, 6, 9), (5, 7)}


def test_under_mss_a_draft_counts_with_its_laws_alone() -> None:
    mailbox = DraftMailbox(vocab_size=60, needs_laws=True)
    mailbox.expect(BASE, DraftBudget(4, 3), frozenset({A, B}))
    laws = (ChildLaw(0, (5, 8), (0.5, 0.5), (1,)), ChildLaw(1, (6,), (1.0,), (2,)))
    assert mailbox.offer(A, _draft()) is DraftOutcome.MALFORMED
    assert mailbox.offer(A, replace(_draft(), laws=laws[:1])) is DraftOutcome.MALFORMED
    assert mailbox.offer(A, replace(_draft(), laws=laws)) is DraftOutcome.ACCEPTED
    assert mailbox.offer(A, replace(_draft(), laws=(*laws, *laws[:1] * 3))) is DraftOutcome.OVER_BUDGET
    assert mailbox.offer(B, replace(_draft((5,), (0,)), laws=laws[:1])) is DraftOutcome.ACCEPTED
    assert mailbox.take() == TokenTree((50, 5, 6), (-1, 0, 1))
    assert mailbox.taken_laws == (*laws, laws[0])
    assert mailbox.take() is None
    assert mailbox.taken_laws == ()


def test_laws_that_nobody_needs_are_not_looked_at(mailbox: DraftMailbox) -> None:
    assert mailbox.offer(A, replace(_draft(), laws=(ChildLaw(9, (), (), ()),))) is DraftOutcome.ACCEPTED
    assert mailbox.take() is not None
    assert mailbox.taken_laws == ()


def test_what_was_taken_is_gone_and_nothing_is_wanted(mailbox: DraftMailbox) -> None:
    mailbox.offer(A, _draft())
    assert mailbox.take() is not None
    assert mailbox.take() is None
    assert mailbox.missing() == frozenset()
    assert mailbox.offer(A, _draft()) is DraftOutcome.UNWANTED


def test_a_new_base_drops_what_lies_here(mailbox: DraftMailbox) -> None:
    mailbox.offer(A, _draft())
    mailbox.expect(Base(11, 5, 6), DraftBudget(4, 3), frozenset({A}))
    assert mailbox.take() is None


def test_without_a_budget_nothing_is_wanted_or_missing() -> None:
    mailbox = DraftMailbox(60)
    assert mailbox.offer(A, _draft()) is DraftOutcome.UNWANTED
    mailbox.expect(BASE, NO_DRAFT, frozenset({A}))
    mailbox.ask_also(frozenset({B}))
    assert mailbox.missing() == frozenset()
    assert mailbox.offer(A, _draft()) is DraftOutcome.UNWANTED


def test_answers_that_propose_nothing_are_told_from_silence(mailbox: DraftMailbox) -> None:
    assert mailbox.take() is None
    assert not mailbox.came_empty
    mailbox.expect(BASE, DraftBudget(4, 3), frozenset({A, B}))
    mailbox.offer(A, _draft((), ()))
    assert mailbox.take() is None
    assert mailbox.came_empty
    mailbox.expect(BASE, DraftBudget(4, 3), frozenset({A, B}))
    mailbox.offer(A, _draft((), ()))
    mailbox.offer(B, _draft())
    assert mailbox.take() is not None
    assert not mailbox.came_empty


def test_an_empty_tree_is_an_answer_and_no_tree(mailbox: DraftMailbox) -> None:
    mailbox.offer(A, _draft((), ()))
    assert mailbox.missing() == {B}
    assert mailbox.take() is None


def test_a_decline_counts_for_its_base_only(mailbox: DraftMailbox) -> None:
    mailbox.decline(A, 9)
    mailbox.decline(STRANGER, 10)
    assert mailbox.missing() == {A, B}
    mailbox.decline(A, 10)
    assert mailbox.missing() == {B}


def test_a_drafter_that_went_is_not_waited_for_but_its_tree_counts(mailbox: DraftMailbox) -> None:
    mailbox.offer(A, _draft())
    mailbox.forget(A)
    mailbox.forget(B)
    assert mailbox.missing() == frozenset()
    assert mailbox.take() is not None


def test_asking_another_drafter_keeps_what_lies_here(mailbox: DraftMailbox) -> None:
    mailbox.offer(A, _draft((1,), (0,)))
    mailbox.ask_also(frozenset({A, B, STRANGER}))
    assert mailbox.missing() == {B, STRANGER}
    assert mailbox.offer(STRANGER, _draft((2,), (0,))) is DraftOutcome.ACCEPTED
    tree = mailbox.take()
    assert tree is not None
    assert tree.paths() == {(), (1,), (2,)}
