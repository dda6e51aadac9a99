"""Who holds which KV block, and which blocks are kept for what is in them.

    free ──allocate──▶ held by 1, 2, ... ──the last one frees it──▶ cached, if it was retained, else free
      ▲                  ▲                                           │
      │                  └───────────────── hold ◀───────────────────┤
      └──────────────────── allocate (its contents are lost) ◀───────┘

A block that somebody holds is never handed out. Only a holder of its own may write to a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specgrove.errors import SpecgroveError
from specgrove.runtime.placement import Availability, InRuns, Placement


class OutOfBlocks(SpecgroveError):
    """The cache has fewer free blocks than the rows need; release or shorten a sequence and try again."""


class BlockAllocator:
    """Hands out block numbers 0..num_blocks-1 and counts their holders.

    `on_evict` hears of a cached block whose contents are lost because it is handed out again.
    """

    def __init__(
        self,
        num_blocks: int,
        placement: Placement | None = None,
        on_evict: Callable[[int], None] = lambda block: None,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks  # blocks that can be had: free ones and cached ones
        self.num_evictions = 0
        self.placement = placement if placement is not None else InRuns()
        self._on_evict = on_evict
        self._blocks = Availability(bytearray(b"\x01" * num_blocks))
        self._num_holders = [0] * num_blocks
        self._is_retained = bytearray(num_blocks)
        self._clock = 0

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and whose contents can still be had."""
        return len(self._blocks.cached)

    def num_holders(self, block: int) -> int:
        return self._num_holders[block]

    def allocate(self, count: int, *, after: int | None = None, room: int = 0) -> list[int]:
        """Take `count` blocks, continuing the run that ends with block `after` as far as it can be continued.

        `room` is how many blocks may be wanted in all, these included: a new run starts where so many can follow.
        Raises `OutOfBlocks` and then changes nothing.
        """
        if count > self.num_free:
            raise OutOfBlocks(f"{count} KV blocks wanted, {self.num_free} of {self.num_blocks} free")
        taken: list[int] = []
        for num_left in range(count, 0, -1):
            after = self.placement.next_block(self._blocks, after, max(room - len(taken), num_left))
            self._take(after)
            taken.append(after)
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """Become one more holder of blocks that are held or cached."""
        for block in blocks:
            if self._blocks.cached.pop(block, None) is not None:
                self.num_free -= 1
            elif self._num_holders[block] == 0:
                raise AssertionError(f"KV block {block} is free: there is nothing in it to hold")
            self._num_holders[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Hold these blocks no longer. Of those that become cached the first are evicted first."""
        for block in blocks:
            if self._num_holders[block] == 0:
                raise AssertionError(f"KV block {block} freed twice")
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                self.num_free += 1
                if self._is_retained[block]:
                    self._clock += 1
                    self._blocks.cached[block] = self._clock
                else:
                    self._blocks.is_free[block] = 1

    def retain(self, block: int) -> None:
        """Keep what is in a held block once nobody holds it, until its place is needed."""
        self._is_retained[block] = 1

    def forget(self, block: int) -> None:
        """What is in a held block need not be kept any more."""
        self._is_retained[block] = 0

    def reads_in_place(self, prefix: Sequence[int], room: int) -> bool:
        """Whether a sequence should begin with these blocks themselves rather than with a copy of them."""
        return self.placement.reads_in_place(self._blocks, prefix, room)

    def _take(self, block: int) -> None:
        if self._blocks.cached.pop(block, None) is not None:
            self._is_retained[block] = 0
            self.num_evictions += 1
            self._on_evict(block)
        elif not self._blocks.is_free[block]:
            raise AssertionError(f"KV block {block} is held and was handed out again")
        self._blocks.is_free[block] = 0
        self._num_holders[block] = 1
        self.num_free -= 1
