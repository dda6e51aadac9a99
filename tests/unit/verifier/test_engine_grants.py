"""Grants that come and go: who is granted nothing costs its drafters nothing, and no token changes."""

from __future__ import annotations

import itertools

from specgrove.runtime.loading import LoadedModel
from specgrove_verifier.drafter_pool import CommitTokens, OpenSession
from specgrove_verifier.mailbox import NO_DRAFT, DraftBudget
from support.engine_stand import InProcessDrafter, Stand, knowing_trees, random_trees, running_stand
from support.tiny_models import VOCAB_SIZE

PROMPT = [4, 5, 6, 7, 8]
MAX_TOKENS = 90


def _grant_in_turn(stand: Stand, *grants: int) -> None:
    """Let the budget say these numbers of nodes, one after the other, then the last for ever."""
    coming = itertools.chain(grants, itertools.repeat(grants[-1]))

    def grant(num_sessions: int, draft_wait_s: float, room: int = 64, num_plain: int = 0) -> DraftBudget:
        nodes = next(coming)
        return DraftBudget(nodes, 5) if nodes else NO_DRAFT

    stand.engine._budget.grant = grant  # type: ignore[method-assign]


def _truth(target: LoadedModel) -> list[int]:
    with running_stand(target) as plain:
        return PROMPT + plain.generate(PROMPT, MAX_TOKENS).token_ids


def test_a_session_that_is_granted_nothing_is_not_opened(target: LoadedModel) -> None:
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE))
    with running_stand(target, drafter, max_nodes=8) as stand:
        _grant_in_turn(stand, 0)
        stand.generate(PROMPT, MAX_TOKENS)
        stand.settle()
        assert drafter.updates == []


def test_it_is_opened_with_all_its_tokens_when_it_is_granted_nodes(target: LoadedModel) -> None:
    truth = _truth(target)
    drafter = InProcessDrafter(knowing_trees([truth]))
    with running_stand(target, drafter, max_nodes=4) as stand:
        _grant_in_turn(stand, *[0] * 10, 4)
        answer = stand.generate(PROMPT, MAX_TOKENS)
        assert PROMPT + answer.token_ids == truth
        opening = drafter.updates[0]
        assert isinstance(opening, OpenSession)
        assert list(opening.token_ids) == truth[: len(PROMPT) + 11]
        assert answer.stats.num_accepted_tokens > 0
        stand.assert_empty()


def test_tokens_are_told_many_at_a_time_while_nothing_is_asked(target: LoadedModel) -> None:
    drafter = InProcessDrafter(knowing_trees([_truth(target)]))
    with running_stand(target, drafter, max_nodes=4) as stand:
        _grant_in_turn(stand, 4, 0)
        stand.generate(PROMPT, MAX_TOKENS)
        stand.settle()
        outcome, *others = [update for update in drafter.updates if isinstance(update, CommitTokens)]
        assert len(outcome.token_ids) > 1, "what became of the tree is told at once"
        assert {len(update.token_ids) for update in others} == {32}
        stand.assert_empty()


def test_who_is_asked_again_is_told_all_first(target: LoadedModel) -> None:
    """In-process drafters refuse commits with a hole; trees that know the text are accepted only under its end."""
    truth = _truth(target)
    first, second = (InProcessDrafter(knowing_trees([truth]), number=number) for number in (1, 2))
    with running_stand(target, first, max_nodes=4, drafters_per_session=2) as stand:
        _grant_in_turn(stand, *[0, 0, 4, 0, 0, 0] * 8, 4)
        running = stand.start(PROMPT, MAX_TOKENS)
        running.next_step()
        stand.attach(second)
        answer = running.answer()
        assert PROMPT + answer.token_ids == truth
        assert answer.stats.num_accepted_tokens > 20
        stand.assert_empty()


def test_a_drafter_that_lost_its_place_is_told_no_token_twice(target: LoadedModel) -> None:
    truth = _truth(target)
    drafter = InProcessDrafter()
    know = knowing_trees([truth])

    def lose_place_now_and_then(one: InProcessDrafter, mirror: object) -> None:
        if len(one.updates) % 5 == 4:
            one.decline(mirror, lost_place=True)  # type: ignore[arg-type]
        elif tree := know(mirror) if mirror.budget.max_nodes else None:  # type: ignore[arg-type, attr-defined]
            one.send(mirror.draft(tree))  # type: ignore[attr-defined]

    drafter.respond = lose_place_now_and_then
    with running_stand(target, drafter, max_nodes=4, max_draft_wait_ms=5.0) as stand:
        _grant_in_turn(stand, *[0, 0, 4, 4, 0] * 20, 0)
        assert PROMPT + stand.generate(PROMPT, MAX_TOKENS).token_ids == truth
        assert stand.sample("specgrove:draft_fallbacks_total", reason="lost_place") > 0
        stand.assert_empty()
