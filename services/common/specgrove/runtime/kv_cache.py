"""The block KV cache: fixed-size blocks, block tables, and the life of a row.

    sequence A, block size 4, cached_len 6        reserve(5) ─▶ rows in flight 6..10     commit([0, 2])

    blocks  [ 17 ]        [ 18 ]                  [ 17 ]    [ 18 ]    [ 19 ]             [ 17 ]    [ 18 ]
    slots    k0 k1 k2 k3   k4 k5 .. ..             k0..k3    k4 k5 r0 r1  r2 r3 r4 ..     k0..k3    k4 k5 r0 r2

`reserve` gives slots to rows, the forward writes them, `commit` moves the kept rows next to the prefix, `rollback`
forgets them, `release` gives everything back. Slots of one sequence are one run of memory wherever the allocator can
arrange it; attention then reads a view and copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from specgrove.errors import SpecgroveError
from specgrove.runtime.kv_moves import PendingMoves


class OutOfBlocks(SpecgroveError):
    """The cache has fewer free blocks than the rows need; release or shorten a sequence and try again."""


class BlockAllocator:
    """Hands out block numbers 0..num_blocks-1, each to one owner at a time."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._is_free = bytearray(b"\x01" * num_blocks)
        self.num_free = num_blocks

    def allocate(self, count: int, *, after: int | None = None) -> list[int]:
        """Take `count` blocks, continuing the run that ends with block `after` as far as it is free."""
        if count > self.num_free:
            raise OutOfBlocks(f"{count} KV blocks wanted, {self.num_free} of {self.num_blocks} free")
        taken: list[int] = []
        candidate = self._start_of_new_run() if after is None else after + 1
        while len(taken) < count:
            if candidate >= self.num_blocks or not self._is_free[candidate]:
                candidate = self._start_of_new_run()
            self._is_free[candidate] = 0
            taken.append(candidate)
            self.num_free -= 1
            candidate += 1
        return taken

    def free(self, blocks: SequenceOf[int]) -> None:
        for block in blocks:
            if self._is_free[block]:
                raise AssertionError(f"KV block {block} freed twice")
            self._is_free[block] = 1
            self.num_free += 1

    def _start_of_new_run(self) -> int:
        """The middle of the largest free run (its start when it begins the cache): room to grow for both neighbours."""
        best_start, best_len = 0, 0
        for start, length in _runs(self._is_free):
            if length > best_len:
                best_start, best_len = start, length
        return best_start if best_start == 0 else best_start + best_len // 2


def _runs(is_free: bytearray) -> list[tuple[int, int]]:
    """(start, length) of the runs of ones."""
    runs = []
    start = is_free.find(1)
    while start >= 0:
        end = is_free.find(0, start)
        end = len(is_free) if end < 0 else end
        runs.append((start, end - start))
        start = is_free.find(1, end) if end < len(is_free) else -1
    return runs


@dataclass(slots=True, eq=False)
class CachedSequence:
    """One sequence's place in the cache. Rows in flight are numbered from 0 since the last commit or rollback."""

    block_table: list[int] = field(default_factory=list)
    cached_len: int = 0
    ancestors: list[int] = field(
        default_factory=list
    )  # per row in flight: bitmask of the rows it sees, itself included
    row_positions: list[int] = field(default_factory=list)
    is_released: bool = False
    is_contiguous: bool = True

    @property
    def num_in_flight(self) -> int:
        return len(self.ancestors)


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one slot holds."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def slot_bytes(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """Keys and values of many sequences: [layers, 2, slots, H_kv, D]."""

    def __init__(
        self, shape: KVShape, *, num_blocks: int, block_size: int = 16, device: torch.device | str = "cpu"
    ) -> None:
        self.shape = shape
        self.block_size = block_size
        self.allocator = BlockAllocator(num_blocks)
        self.device = torch.device(device)
        self.moves: PendingMoves | None = None  # where accepted paths wait for one launch; None moves them at once
        self.storage = torch.zeros(
            (shape.num_layers, 2, num_blocks * block_size, shape.num_kv_heads, shape.head_dim),
            dtype=shape.dtype,
            device=device,
        )

    @property
    def num_blocks(self) -> int:
        return self.allocator.num_blocks

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return 1.0 - self.allocator.num_free / self.allocator.num_blocks

    def blocks_for(self, num_slots: int) -> int:
        return -(-num_slots // self.block_size)

    def new_sequence(self) -> CachedSequence:
        return CachedSequence()

    def reserve(self, seq: CachedSequence, num_rows: int) -> None:
        """Make room for `num_rows` more rows in flight. Raises `OutOfBlocks` and then changes nothing."""
        missing = self.blocks_for(seq.cached_len + seq.num_in_flight + num_rows) - len(seq.block_table)
        if missing > 0:
            last = seq.block_table[-1] if seq.block_table else None
            seq.block_table += self.allocator.allocate(missing, after=last)
            first = seq.block_table[0]
            seq.is_contiguous = seq.block_table == list(range(first, first + len(seq.block_table)))

    def append_rows(self, seq: CachedSequence, parents: SequenceOf[int], positions: SequenceOf[int]) -> None:
        """Number new rows in flight; `parents[i]` is the row that row i follows, -1 for the cached prefix."""
        for parent, position in zip(parents, positions, strict=True):
            row = seq.num_in_flight
            if not -1 <= parent < row:
                raise ValueError(f"row {row} cannot follow row {parent}")
            seq.ancestors.append((seq.ancestors[parent] if parent >= 0 else 0) | (1 << row))
            seq.row_positions.append(position)

    def slots(self, seq: CachedSequence, start: int, stop: int) -> torch.Tensor | slice:
        """Where tokens start..stop-1 of the sequence lie: a slice when they are one run, else int64 [stop - start]."""
        if seq.is_contiguous and seq.block_table:
            base = seq.block_table[0] * self.block_size
            return slice(base + start, base + stop)
        index = torch.arange(start, stop)
        table = torch.tensor(seq.block_table, dtype=torch.int64)
        return (table[index // self.block_size] * self.block_size + index % self.block_size).to(self.device)

    def commit(self, seq: CachedSequence, kept_rows: SequenceOf[int]) -> None:
        """Keep `kept_rows` (ascending rows in flight) as the continuation of the prefix and forget the others."""
        kept = list(kept_rows)
        if any(not 0 <= row < seq.num_in_flight for row in kept) or any(
            later <= earlier for earlier, later in pairwise(kept)
        ):
            raise ValueError(f"kept rows must ascend within the {seq.num_in_flight} rows in flight, got {kept}")
        moved = [(place, row) for place, row in enumerate(kept) if place != row]
        if moved:
            first = moved[0][0]  # rows before it are in place already
            if self.moves is not None:
                self.moves.add(
                    self._slots_of_rows(seq, kept[first:]), self._slots_of_rows(seq, range(first, len(kept)))
                )
            else:
                target = self.slots(seq, seq.cached_len + first, seq.cached_len + len(kept))
                source = torch.tensor(self._slots_of_rows(seq, kept[first:]), dtype=torch.int64, device=self.device)
                # Advanced indexing reads into a copy first, so overlapping source and target are safe.
                self.storage[:, :, target] = self.storage[:, :, source]
        seq.cached_len += len(kept)
        self.rollback(seq)

    def rollback(self, seq: CachedSequence) -> None:
        """Forget the rows in flight and give blocks that only they used back."""
        seq.ancestors.clear()
        seq.row_positions.clear()
        self._trim(seq)

    def truncate(self, seq: CachedSequence, new_len: int) -> None:
        """Shorten the prefix to `new_len` tokens; rows in flight are forgotten."""
        if not 0 <= new_len <= seq.cached_len:
            raise ValueError(f"cannot truncate {seq.cached_len} cached tokens to {new_len}")
        seq.cached_len = new_len
        self.rollback(seq)

    def release(self, seq: CachedSequence) -> None:
        """Give every block back. Safe to call twice."""
        if not seq.is_released:
            self.truncate(seq, 0)
            seq.is_released = True

    def _slots_of_rows(self, seq: CachedSequence, rows: SequenceOf[int]) -> list[int]:
        places = [seq.cached_len + row for row in rows]
        return [
            seq.block_table[place // self.block_size] * self.block_size + place % self.block_size for place in places
        ]

    def _trim(self, seq: CachedSequence) -> None:
        keep = self.blocks_for(seq.cached_len)
        if keep < len(seq.block_table):
            self.allocator.free(seq.block_table[keep:])
            del seq.block_table[keep:]
            seq.is_contiguous = not seq.block_table or seq.block_table == list(
                range(seq.block_table[0], seq.block_table[0] + keep)
            )
