"""What a running engine's scheduler and budget did, step by step, and a way to hand them many sessions at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from specgrove_verifier.generation import Generation
from specgrove_verifier.scheduler import Scheduled, Scheduler
from support.engine_stand import TIMEOUT_S, Stand


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one session in a step, as composed."""

    key: int
    cached_len: int
    num_chain: int
    reaches_end: bool  # the committed tokens are read to their end, so a token is chosen
    num_nodes: int


@dataclass(frozen=True, slots=True)
class Place:
    """A place that a session was given."""

    key: int
    num_tokens: int
    num_hit: int  # of them, those that lay in the cache
    is_first: bool  # it does not come back from a preemption


@dataclass(slots=True)
class Watch:
    """Everything since `over` was called."""

    steps: list[list[Rows]] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    grants: list[int] = field(default_factory=list)  # nodes
    num_left_out: list[int] = field(default_factory=list)  # sessions that waited for their turn, step by step
    num_starving_steps: int = 0  # in which prompts, that had more to read, got less than a quarter of the rows
    most_running: int = 0
    most_waiting: int = 0

    @classmethod
    def over(cls, stand: Stand) -> Watch:
        watch, scheduler, budget = cls(), stand.engine._scheduler, stand.engine._budget
        compose, give_place, grant = scheduler.compose, scheduler._give_place, budget.grant

        def watched_compose(left_out: Any = ()) -> Any:
            step = compose(left_out)
            watch.steps.append([_rows(scheduled) for scheduled in step])
            watch.num_left_out.append(len(left_out))
            watch.num_starving_steps += _is_starving(scheduler, step)
            watch.most_running = max(watch.most_running, len(scheduler.running))
            watch.most_waiting = max(watch.most_waiting, len(scheduler.waiting))
            return step

        def watched_give_place(generation: Generation, prefix: Any) -> None:
            is_first = not generation.had_place
            give_place(generation, prefix)
            num_hit = generation.seq.cached_len if generation.seq is not None else 0
            watch.places.append(Place(generation.key, len(generation.tokens), num_hit, is_first))

        def watched_grant(*arguments: Any) -> Any:
            granted = grant(*arguments)
            watch.grants.append(granted.max_nodes)
            return granted

        scheduler.compose = watched_compose  # type: ignore[method-assign]
        scheduler._give_place = watched_give_place  # type: ignore[method-assign]
        budget.grant = watched_grant  # type: ignore[method-assign]
        return watch

    @property
    def first_places(self) -> list[Place]:
        return [place for place in self.places if place.is_first]

    def rows_of(self, key: int) -> list[Rows]:
        return [rows for step in self.steps for rows in step if rows.key == key]

    def num_chunks(self, key: int) -> int:
        """Steps in which the prompt of a session was read, until it began to decode for the first time."""
        return next(count for count, rows in enumerate(self.rows_of(key), start=1) if rows.reaches_end)

    def num_shared_steps(self) -> int:
        """Steps in which a prompt was read in part while another one, or a session that decodes, had rows beside it."""
        return sum(len(step) > 1 and not all(rows.reaches_end for rows in step) for step in self.steps)

    def num_overtaking_steps(self) -> int:
        """Of these, steps in which the other one was a prompt that came later."""
        prompts = ([rows for rows in step if rows.num_chain > 1 or not rows.reaches_end] for step in self.steps)
        return sum(len(some) > 1 and not some[0].reaches_end for some in prompts)


def _rows(scheduled: Scheduled) -> Rows:
    return Rows(
        scheduled.generation.key,
        scheduled.seq.cached_len,
        scheduled.num_chain,
        scheduled.reaches_end,
        scheduled.num_rows - scheduled.num_chain,
    )


def _is_starving(scheduler: Scheduler, step: Sequence[Scheduled]) -> bool:
    in_prefill = {one.key: one.num_uncached for one in scheduler.running if not one.is_decoding}
    num_rows = sum(scheduled.num_chain for scheduled in step if scheduled.generation.key in in_prefill)
    return num_rows < min(scheduler._max_step_rows // 4, sum(in_prefill.values()))


@contextmanager
def held(stand: Stand) -> Iterator[None]:
    """Whatever is submitted inside comes to the engine at once."""
    stopped, released = threading.Event(), threading.Event()

    def hold() -> None:
        stopped.set()
        released.wait(TIMEOUT_S)

    stand.engine._inbox.command(hold)
    assert stopped.wait(TIMEOUT_S)  # what is submitted earlier may be taken in with this command
    try:
        yield
    finally:
        released.set()
