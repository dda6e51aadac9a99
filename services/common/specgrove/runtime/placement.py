"""Which block is handed out next, and whether a cached prefix is read where it lies.

CPU: attention reads a run of blocks as a view and must copy scattered ones in every layer of every step

blocks   | A A A A . . | c c c c c | B B B . . . . . . |      A, B held   c cached   . free
InRuns     a new run starts in a free gap that has room for it: beside cached blocks, which do not grow, at once;
           behind held ones in the middle, so that both can grow. No such gap: over the blocks that were let go
           longest ago. A run goes on over cached blocks, never over held ones.
Anywhere   free blocks as long as there are some, then the cached block that was let go longest ago
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Protocol

_MAX_GAPS_SEEN = 256  # of a large, fragmented cache: a step cannot look at them all


@dataclass(slots=True, eq=False)
class Availability:
    """Which blocks can be handed out."""

    is_free: bytearray  # 1: nobody holds it, and nobody will ask for what is in it
    cached: OrderedDict[int, int] = field(default_factory=OrderedDict)  # nobody holds them: block -> when let go

    def is_held(self, block: int) -> bool:
        return not self.is_free[block] and block not in self.cached


class Placement(Protocol):
    """Chooses among the blocks that can be had; there is at least one."""

    shares_held: bool  # whether a prefix that others hold now is read where it lies, as a rule

    def next_block(self, blocks: Availability, after: int | None, room: int) -> int:
        """The block that continues a sequence behind block `after` (None: that starts one) which may want `room`."""
        ...

    def reads_in_place(self, blocks: Availability, prefix: Sequence[int], room: int) -> bool:
        """Whether a sequence that may want `room` blocks should begin with `prefix` itself, not with a copy of it."""
        ...


class Anywhere:
    """For attention that follows block tables: where a block lies does not matter."""

    shares_held = True

    def next_block(self, blocks: Availability, after: int | None, room: int) -> int:
        if after is not None and after + 1 < len(blocks.is_free) and blocks.is_free[after + 1]:
            return after + 1
        gap = _largest_gap(blocks.is_free)
        return _start_within(blocks, *gap, room) if gap is not None else next(iter(blocks.cached))

    def reads_in_place(self, blocks: Availability, prefix: Sequence[int], room: int) -> bool:
        return True


class InRuns:
    """For attention that reads runs of blocks: keeping a sequence in one run is worth a cached block, and a copy."""

    shares_held = False

    def next_block(self, blocks: Availability, after: int | None, room: int) -> int:
        if after is not None and after + 1 < len(blocks.is_free) and not blocks.is_held(after + 1):
            return after + 1
        gap = _largest_gap(blocks.is_free)
        if gap is not None and (gap[1] >= room or not blocks.cached):
            return _start_within(blocks, *gap, room)
        ages = _ages(blocks)
        room = min(room, max(length for _, length in _reachable(ages)))
        return _oldest_window(ages, room)[0]

    def reads_in_place(self, blocks: Availability, prefix: Sequence[int], room: int) -> bool:
        ages = _ages(blocks)
        for block in prefix:
            ages[block] = inf
        elsewhere = _oldest_window(ages, room)[1]
        end = prefix[-1] + 1
        fits = end + room - len(prefix) <= len(ages)
        ahead = max(ages[end : end + room - len(prefix)], default=0.0) if fits and is_run(prefix) else inf
        return ahead <= elsewhere


def is_run(blocks: Sequence[int]) -> bool:
    """Whether the blocks are neighbours in ascending order, so that a view reads them."""
    return not blocks or list(blocks) == list(range(blocks[0], blocks[0] + len(blocks)))


def _largest_gap(is_free: bytearray) -> tuple[int, int] | None:
    """(start, length) of the largest free run; None when nothing is free."""
    return max(islice(_gaps(is_free), _MAX_GAPS_SEEN), key=lambda gap: gap[1], default=None)


def _gaps(is_free: bytearray) -> Iterator[tuple[int, int]]:
    start = is_free.find(1)
    while start >= 0:
        end = is_free.find(0, start)
        end = len(is_free) if end < 0 else end
        yield start, end - start
        start = is_free.find(1, end)


def _start_within(blocks: Availability, start: int, length: int, room: int) -> int:
    """Where to begin in a free gap: its middle where a neighbour may grow into it, as far as `room` is left."""
    if start == 0 or not blocks.is_held(start - 1):
        return start
    return start + max(min(length // 2, length - room), 0)


def _ages(blocks: Availability) -> list[float]:
    """By block: 0 free, when it was let go where it is cached, infinite where it is held."""
    ages = [0.0 if free else inf for free in blocks.is_free]
    for block, let_go in blocks.cached.items():
        ages[block] = let_go
    return ages


def _reachable(ages: Sequence[float]) -> Iterator[tuple[int, int]]:
    """(start, length) of the runs that nobody holds anything of."""
    return _gaps(bytearray(age < inf for age in ages))


def _oldest_window(ages: Sequence[float], length: int) -> tuple[int, float]:
    """The start of `length` neighbours whose newest was let go longest ago, and when that was (infinite: none)."""
    best, best_age = 0, inf
    newest: deque[int] = deque()  # candidates for the newest of the window, ages descending
    for block, age in enumerate(ages):
        while newest and ages[newest[-1]] <= age:
            newest.pop()
        newest.append(block)
        start = block - length + 1
        if newest[0] < start:
            newest.popleft()
        if start >= 0 and ages[newest[0]] < best_age:
            best, best_age = start, ages[newest[0]]
    return best, best_age
