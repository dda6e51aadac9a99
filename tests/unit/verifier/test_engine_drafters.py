"""Whatever a drafter does, it costs speed at most: the tokens stay, and so do the other sessions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from specgrove.draft import Draft
from specgrove.runtime.loading import LoadedModel
from specgrove.tree import TokenTree
from specgrove_verifier.drafter_pool import CloseSession, CommitTokens, OpenSession
from support.engine_stand import GREEDY, InProcessDrafter, Mirror, knowing_trees, random_trees, running_stand
from support.tiny_models import VOCAB_SIZE

PROMPTS = [[4, 5, 6], [7], [20, 21, 22, 23, 24]]
MAX_TOKENS = 12

Respond = Callable[[InProcessDrafter, Mirror], None]


@pytest.fixture(scope="module")
def truths(target: LoadedModel) -> list[list[int]]:
    with running_stand(target) as stand:
        return [prompt + stand.generate(prompt, MAX_TOKENS).token_ids for prompt in PROMPTS]


def _chain(mirror: Mirror, token_ids: list[int]) -> TokenTree:
    return TokenTree.from_paths(mirror.token_ids[-1], [token_ids])


def _flood(drafter: InProcessDrafter, mirror: Mirror) -> None:
    propose = random_trees(VOCAB_SIZE, seed=len(mirror.token_ids))
    for _ in range(50):
        tree = propose(mirror) if mirror.budget.max_nodes else _chain(mirror, [3])
        assert tree is not None
        drafter.send(mirror.draft(tree))


def _lie_about_the_base(drafter: InProcessDrafter, mirror: Mirror) -> None:
    honest = mirror.draft(_chain(mirror, [3]))
    if len(drafter.updates) < 200:  # a divergent draft is answered with an Open; the lie is not repeated for ever
        drafter.send(replace(honest, base_hash=honest.base_hash ^ 1))


def _run_ahead(drafter: InProcessDrafter, mirror: Mirror) -> None:
    honest = mirror.draft(_chain(mirror, [3]))
    if len(drafter.updates) < 200:
        drafter.send(replace(honest, base_len=honest.base_len + 4))


def _lag_behind(drafter: InProcessDrafter, mirror: Mirror) -> None:
    honest = mirror.draft(_chain(mirror, [3]))
    drafter.send(replace(honest, base_len=honest.base_len - 1))


def _send(change: Callable[[Draft], Draft]) -> Respond:
    def respond(drafter: InProcessDrafter, mirror: Mirror) -> None:
        drafter.send(change(mirror.draft(_chain(mirror, [3, 4]))))

    return respond


def _garbage(drafter: InProcessDrafter, mirror: Mirror) -> None:
    random = Random(len(mirror.token_ids))
    for _ in range(20):
        size = random.randrange(12)
        drafter.send(
            Draft(
                random.choice([mirror.key, mirror.key + 1, 2**64 - 1]),
                random.choice([len(mirror.token_ids), 0, 2**32 - 1]),
                random.choice([mirror.draft(_chain(mirror, [])).base_hash, 0, 2**64 - 1]),
                tuple(random.choice([3, 2**32 - 1, -1, VOCAB_SIZE]) for _ in range(size)),
                tuple(random.choice([0, 1, size, 2**32 - 1, -1]) for _ in range(random.choice([size, size + 1]))),
                tuple(random.randrange(2**32) for _ in range(random.choice([0, size, 1]))),
            )
        )


BAD_DRAFTERS = {
    "floods": (_flood, None),
    "lies about the base": (_lie_about_the_base, "divergent"),
    "runs ahead": (_run_ahead, "divergent"),
    "lags behind": (_lag_behind, "late"),
    "sends unknown tokens": (_send(lambda draft: replace(draft, token_ids=(3, VOCAB_SIZE))), "malformed"),
    "sends the largest token": (_send(lambda draft: replace(draft, token_ids=(2**32 - 1, 3))), "malformed"),
    "sends children first": (_send(lambda draft: replace(draft, parents=(2, 0))), "malformed"),
    "sends twins": (_send(lambda draft: replace(draft, token_ids=(3, 3), parents=(0, 0))), "malformed"),
    "sends ragged columns": (_send(lambda draft: replace(draft, parents=(0,))), "malformed"),
    "sends too wide a tree": (
        _send(lambda draft: replace(draft, token_ids=tuple(range(40)), parents=(0,) * 40, members=())),
        "over_budget",
    ),
    "sends too deep a tree": (
        _send(lambda draft: replace(draft, token_ids=(3,) * 7, parents=tuple(range(7)), members=())),
        "over_budget",
    ),
    "names another session": (_send(lambda draft: replace(draft, session_key=draft.session_key + 77)), "foreign"),
    "sends garbage": (_garbage, None),
}


@pytest.mark.parametrize("kind", BAD_DRAFTERS)
def test_a_bad_drafter_changes_no_token_and_is_counted(target: LoadedModel, truths: list[list[int]], kind: str) -> None:
    respond, reason = BAD_DRAFTERS[kind]
    bad = InProcessDrafter(respond=respond, number=1)
    with running_stand(target, bad, max_nodes=8, max_depth=5, max_draft_wait_ms=5.0) as stand:
        running = [stand.start(prompt, MAX_TOKENS) for prompt in PROMPTS]
        outputs = [prompt + one.answer().token_ids for prompt, one in zip(PROMPTS, running, strict=True)]
        assert outputs == truths
        if reason is not None:
            assert stand.sample("specgrove:stale_drafts_total", reason=reason) > 0
        assert not stand.broke.is_set()
        stand.assert_empty()


def test_a_bad_drafter_does_not_spoil_a_good_one(target: LoadedModel, truths: list[list[int]]) -> None:
    bad = InProcessDrafter(respond=_garbage, number=1)
    good = InProcessDrafter(knowing_trees(truths), number=2)
    with running_stand(target, bad, good, drafters_per_session=2, max_draft_wait_ms=20.0) as stand:
        answer = stand.generate(PROMPTS[0], MAX_TOKENS)
        assert PROMPTS[0] + answer.token_ids == truths[0]
        assert answer.stats.num_accepted_tokens > 3


def test_a_silent_drafter_costs_one_wait_and_no_more(target: LoadedModel, truths: list[list[int]]) -> None:
    silent = InProcessDrafter()
    with running_stand(target, silent, max_draft_wait_ms=150.0) as stand:
        started = time.monotonic()
        assert PROMPTS[0] + stand.generate(PROMPTS[0], MAX_TOKENS).token_ids == truths[0]
        assert time.monotonic() - started < 150e-3 * 5  # eleven waits would be 1.65 s
        assert stand.sample("specgrove:draft_fallbacks_total", reason="deadline") >= 1


def test_a_drafter_that_goes_in_mid_stream_changes_nothing(target: LoadedModel, truths: list[list[int]]) -> None:
    drafter = InProcessDrafter(knowing_trees(truths, right_len=1))
    with running_stand(target, drafter) as stand:
        running = stand.start(PROMPTS[0], MAX_TOKENS)
        running.next_step()
        stand.engine.detach(drafter.number)
        assert PROMPTS[0] + running.answer().token_ids == truths[0]
        assert stand.engine.num_drafters == 0


def test_a_drafter_that_comes_in_mid_stream_is_used(target: LoadedModel, truths: list[list[int]]) -> None:
    """It is attached by the first commit that the engine speaks of, so that the test needs no clock."""
    late = InProcessDrafter(knowing_trees(truths), number=2)

    def bring_the_other(drafter: InProcessDrafter, mirror: Mirror) -> None:
        if len(mirror.token_ids) == len(PROMPTS[0]) + 3:
            stand.engine.detach(drafter.number)
            stand.attach(late)
        drafter.decline(mirror)

    first = InProcessDrafter(respond=bring_the_other, number=1)
    with running_stand(target, first) as stand:
        answer = stand.generate(PROMPTS[0], MAX_TOKENS)
        assert PROMPTS[0] + answer.token_ids == truths[0]
        assert answer.stats.num_accepted_tokens > 3
        assert isinstance(late.updates[0], OpenSession)


def test_a_tree_that_waits_stays_when_another_drafter_attaches(target: LoadedModel, truths: list[list[int]]) -> None:
    propose = knowing_trees(truths)
    ready = InProcessDrafter(propose, number=1)
    slow = InProcessDrafter(number=2)
    newcomer = InProcessDrafter(respond=lambda drafter, mirror: drafter.decline(mirror), number=3)
    with running_stand(target, ready, slow, drafters_per_session=3, max_draft_wait_ms=5_000.0) as stand:
        running = stand.start(PROMPTS[0], MAX_TOKENS)
        running.next_step()
        stand.settle()  # the tree of `ready` lies in the mailbox, the engine waits for `slow`
        stand.attach(newcomer)
        stand.settle()
        slow.decline(slow.mirrors[1])
        started = time.monotonic()
        assert len(running.next_step().token_ids) > 1
        assert time.monotonic() - started < 2.0
        assert stand.sample("specgrove:draft_fallbacks_total", reason="deadline") == 0
        stand.engine.detach(2)
        running.answer()


def test_a_drafter_without_room_is_not_asked_again_until_a_session_ends(
    target: LoadedModel, truths: list[list[int]]
) -> None:
    def refuse_all_but_one(drafter: InProcessDrafter, mirror: Mirror) -> None:
        if len(drafter.mirrors) > 1:
            del drafter.mirrors[mirror.key]
            drafter.decline(mirror, no_room=True)
        else:
            drafter.decline(mirror)

    drafter = InProcessDrafter(respond=refuse_all_but_one)
    with running_stand(target, drafter) as stand:
        running = [stand.start(prompt, MAX_TOKENS) for prompt in PROMPTS]
        outputs = [prompt + one.answer().token_ids for prompt, one in zip(PROMPTS, running, strict=True)]
        assert outputs == truths
        stand.assert_empty()
        opened = [update.session_key for update in drafter.updates if isinstance(update, OpenSession)]
        assert len(opened) == len(set(opened))
        stand.generate(PROMPTS[0], 3)
        stand.settle()
        assert drafter.updates[-1] == CloseSession(4, "length")


def test_a_drafter_that_lost_its_place_is_told_everything_again(target: LoadedModel, truths: list[list[int]]) -> None:
    lost: set[int] = set()
    propose = knowing_trees(truths, right_len=2)

    def lose_it_once(drafter: InProcessDrafter, mirror: Mirror) -> None:
        if len(mirror.token_ids) > 6 and mirror.key not in lost:
            lost.add(mirror.key)
            drafter.decline(mirror, lost_place=True)
            mirror.token_ids = []  # the next commit would be one with a hole
            return
        tree = propose(mirror) if mirror.budget.max_nodes else None
        if tree is None:
            drafter.decline(mirror)
        else:
            drafter.send(mirror.draft(tree))

    drafter = InProcessDrafter(respond=lose_it_once)
    with running_stand(target, drafter) as stand:
        answer = stand.generate(PROMPTS[0], MAX_TOKENS)
        assert PROMPTS[0] + answer.token_ids == truths[0]
        openings = [update for update in drafter.updates if isinstance(update, OpenSession)]
        assert len(openings) == 2
        assert list(openings[1].token_ids) == truths[0][: len(openings[1].token_ids)]
        assert answer.stats.num_accepted_tokens > 3


def test_the_mirror_hears_every_token_once_and_the_end(target: LoadedModel, truths: list[list[int]]) -> None:
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE))
    with running_stand(target, drafter) as stand:
        running = stand.start(PROMPTS[2], MAX_TOKENS, stop_token_ids=(60, 50))
        tokens = running.answer().token_ids
        stand.settle()
        opening, *others = drafter.updates
        assert isinstance(opening, OpenSession)
        heard = list(opening.token_ids)
        for update in others[:-1]:
            assert isinstance(update, CommitTokens)
            assert update.from_len == len(heard)
            heard += update.token_ids
        assert heard == (PROMPTS[2] + tokens)[: len(heard)]
        assert opening.sampling == GREEDY
        assert opening.stop_token_ids == (50, 60)
        assert others[-1] == CloseSession(opening.session_key, str(running.answer().finish_reason))


def test_sessions_are_shared_among_drafters(target: LoadedModel, truths: list[list[int]]) -> None:
    drafters = [InProcessDrafter(knowing_trees(truths), number=number) for number in (1, 2, 3)]
    with running_stand(target, *drafters) as stand:
        running = [stand.start(prompt, MAX_TOKENS) for prompt in PROMPTS]
        for one in running:
            one.answer()
        stand.settle()
        assert [len(drafter.closed) for drafter in drafters] == [1, 1, 1]


def test_a_drafter_is_given_no_more_sessions_than_it_takes(target: LoadedModel, truths: list[list[int]]) -> None:
    drafter = InProcessDrafter(knowing_trees(truths))
    with running_stand(target) as stand:
        stand.attach(drafter, max_sessions=1)
        running = [stand.start(prompt, MAX_TOKENS) for prompt in PROMPTS]
        assert [p + one.answer().token_ids for p, one in zip(PROMPTS, running, strict=True)] == truths
        most_at_once = 0
        current: set[int] = set()
        for update in drafter.updates:
            (current.discard if isinstance(update, CloseSession) else current.add)(update.session_key)
            most_at_once = max(most_at_once, len(current))
        assert most_at_once == 1
