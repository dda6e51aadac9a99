"""Sessions that go in turns: half of them are verified while the others' trees are drafted. Tokens stay the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random

import pytest

from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SpeculationOptions
from specgrove_verifier.scheduler import Scheduled
from support.engine_stand import InProcessDrafter, Mirror, Propose, Stand, knowing_trees, random_trees, running_stand
from support.tiny_models import VOCAB_SIZE

MAX_TOKENS = 24


def _prompts(count: int) -> list[list[int]]:
    random = Random(3)
    return [[random.randrange(3, VOCAB_SIZE) for _ in range(2 + length)] for length in range(count)]


@pytest.fixture(scope="module")
def truths(target: LoadedModel) -> list[list[int]]:
    with running_stand(target) as stand:
        return [prompt + stand.generate(prompt, MAX_TOKENS).token_ids for prompt in _prompts(8)]


@contextmanager
def _watching(stand: Stand) -> Iterator[list[list[Scheduled]]]:
    """The composed steps of an engine, as they come."""
    steps: list[list[Scheduled]] = []
    compose = stand.engine._scheduler.compose

    def watched(*arguments: object) -> list[Scheduled]:
        step = compose(*arguments)  # type: ignore[arg-type]
        steps.append(step)
        return step

    stand.engine._scheduler.compose = watched  # type: ignore[method-assign]
    yield steps


def _start_together(stand: Stand, count: int, **settings: object) -> list[list[int]]:
    running = [stand.start(prompt, MAX_TOKENS, **settings) for prompt in _prompts(count)]
    return [prompt + one.answer().token_ids for prompt, one in zip(_prompts(count), running, strict=True)]


@pytest.mark.parametrize("pacing", ["together", "in_turns"])
@pytest.mark.parametrize("kind", ["perfect", "right for a while", "random"])
def test_no_token_changes(target: LoadedModel, truths: list[list[int]], pacing: str, kind: str) -> None:
    trees = {
        "perfect": knowing_trees(truths),
        "right for a while": knowing_trees(truths, right_len=2),
        "random": random_trees(VOCAB_SIZE),
    }[kind]
    with running_stand(target, InProcessDrafter(trees), pacing=pacing) as stand:
        assert _start_together(stand, 8) == truths
        stand.assert_empty()


@pytest.mark.parametrize("count", [2, 5, 8])
def test_a_step_takes_half_of_the_sessions_at_most(target: LoadedModel, truths: list[list[int]], count: int) -> None:
    with (
        running_stand(target, InProcessDrafter(knowing_trees(truths, right_len=1)), pacing="in_turns") as stand,
        _watching(stand) as steps,
    ):
        assert _start_together(stand, count) == truths[:count]
    with_trees = [sum(scheduled.tree is not None for scheduled in step) for step in steps]
    assert max(with_trees) == (count + 1) // 2
    sizes = [size for size in with_trees if size]
    assert len(sizes) > 8


def test_sessions_take_turns_fairly(target: LoadedModel, truths: list[list[int]]) -> None:
    with (
        running_stand(target, InProcessDrafter(knowing_trees(truths, right_len=1)), pacing="in_turns") as stand,
        _watching(stand) as steps,
    ):
        _start_together(stand, 6)
    keys = {scheduled.generation.key for step in steps for scheduled in step}
    for key in keys:
        places = [place for place, step in enumerate(steps) if any(one.generation.key == key for one in step)]
        gaps = [later - earlier for earlier, later in pairwise(places)]
        assert max(gaps) <= 3, "whoever has not run is before those that have"


def test_sessions_without_drafts_run_in_every_step(target: LoadedModel, truths: list[list[int]]) -> None:
    """One asks for no speculation: it is never left out for the sake of those that do."""
    drafter = InProcessDrafter(knowing_trees(truths, right_len=1))
    with running_stand(target, drafter, pacing="in_turns") as stand, _watching(stand) as steps:
        plain = stand.start(_prompts(5)[4], MAX_TOKENS, speculation=SpeculationOptions(is_enabled=False))
        key = plain.generation.key
        others = [stand.start(prompt, MAX_TOKENS) for prompt in _prompts(4)]
        assert _prompts(5)[4] + plain.answer().token_ids == truths[4]
        for one in others:
            one.answer()
    with_it = [any(scheduled.generation.key == key for scheduled in step) for step in steps]
    first, last = with_it.index(True), len(with_it) - 1 - with_it[::-1].index(True)
    assert all(with_it[first : last + 1])


def test_slow_drafts_are_made_while_others_are_verified(target: LoadedModel, truths: list[list[int]]) -> None:
    """The drafter answers from its own thread after a while; steps go on meanwhile, and nobody misses a deadline."""
    propose = knowing_trees(truths, right_len=1)
    drafter = InProcessDrafter(respond=lambda drafter, mirror: _answer_later(drafter, mirror, propose, 0.004))
    with running_stand(target, drafter, pacing="in_turns") as stand:
        assert _start_together(stand, 8) == truths
        assert stand.sample("specgrove:draft_fallbacks_total", reason="deadline") == 0
        stand.assert_empty()


def test_a_silent_drafter_holds_nobody_back(target: LoadedModel, truths: list[list[int]]) -> None:
    with running_stand(target, InProcessDrafter(), pacing="in_turns", max_draft_wait_ms=3.0) as stand:
        assert _start_together(stand, 8) == truths
        stand.assert_empty()


def _answer_later(drafter: InProcessDrafter, mirror: Mirror, propose: Propose, delay_s: float) -> None:
    tree = propose(mirror) if mirror.budget.max_nodes else None
    if tree is None:
        return
    draft = mirror.draft(tree)

    def answer() -> None:
        time.sleep(delay_s)
        drafter.send(draft)

    threading.Thread(target=answer, daemon=True).start()
