"""The block KV cache: fixed-size blocks, block tables, and the life of a row.

    sequence A, block size 4, cached_len 6        reserve(5) ─▶ rows in flight 6..10     commit([0, 2])

    blocks  [ 17 ]        [ 18 ]                  [ 17 ]    [ 18 ]    [ 19 ]             [ 17 ]    [ 18 ]
    slots    k0 k1 k2 k3   k4 k5 .. ..             k0..k3    k4 k5 r0 r1  r2 r3 r4 ..     k0..k3    k4 k5 r0 r2

`reserve` gives slots to rows, the forward writes them, `commit` moves the kept rows next to the prefix, `rollback`
forgets them, `release` gives everything back. Slots of one sequence are one run of memory wherever the allocator can
arrange it; attention then reads a view and copies nothing.

    publish(hashes)  full blocks of the prefix can be found by others      start_with(hashes)  begin with such blocks

A published block is never written to: whoever holds it has all of it in its prefix, and rows go behind the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from specgrove.runtime.blocks import BlockAllocator
from specgrove.runtime.blocks import OutOfBlocks as OutOfBlocks
from specgrove.runtime.kv_moves import PendingMoves
from specgrove.runtime.placement import Anywhere, InRuns, is_run
from specgrove.runtime.prefix_cache import PrefixIndex


@dataclass(slots=True, eq=False)
class CachedSequence:
    """One sequence's place in the cache. Rows in flight are numbered from 0 since the last commit or rollback."""

    block_table: list[int] = field(default_factory=list)
    cached_len: int = 0
    ancestors: list[int] = field(
        default_factory=list
    )  # per row in flight: bitmask of the rows it sees, itself included
    row_positions: list[int] = field(default_factory=list)
    expected_len: int = 0  # tokens it may come to hold, as far as one can tell
    num_published: int = 0  # of its first blocks
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
        self.device = torch.device(device)
        self._index = PrefixIndex()
        placement = InRuns() if self.device.type == "cpu" else Anywhere()
        self.allocator = BlockAllocator(num_blocks, placement, self._index.remove)
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

    def new_sequence(self, expected_len: int = 0) -> CachedSequence:
        """An empty sequence. It gets its blocks where `expected_len` tokens find room, if there is such a place."""
        return CachedSequence(expected_len=expected_len)

    def start_with(self, seq: CachedSequence, block_hashes: SequenceOf[bytes]) -> None:
        """Begin an empty sequence with the longest published prefix of these blocks; `cached_len` says how long it is.

        Its blocks are shared; where that would scatter the sequence and attention wants runs, they are copied.
        """
        prefix = self._index.longest_prefix(block_hashes)
        if not prefix:
            return
        room = max(self.blocks_for(seq.expected_len), len(prefix))
        is_shared = self.allocator.reads_in_place(prefix, room)
        self.allocator.hold(prefix)
        if not is_shared and self.allocator.num_free >= len(prefix):
            seq.block_table = self._copy(prefix, room)
        else:
            seq.block_table = prefix
            seq.num_published = len(prefix)
        seq.cached_len = len(prefix) * self.block_size
        seq.is_contiguous = is_run(seq.block_table)

    def num_prefix_blocks_shared(self, block_hashes: SequenceOf[bytes]) -> int:
        """How many blocks of the longest published prefix would cost nothing, because others hold them."""
        if not self.allocator.placement.shares_held:
            return 0
        return sum(self.allocator.num_holders(block) > 0 for block in self._index.longest_prefix(block_hashes))

    def publish(self, seq: CachedSequence, block_hashes: SequenceOf[bytes]) -> None:
        """Let others find the full blocks of the prefix; `block_hashes` are those of the sequence's first blocks.

        They are kept after the sequence is released, until their place is needed.
        """
        for place in range(seq.num_published, min(seq.cached_len // self.block_size, len(block_hashes))):
            block = seq.block_table[place]
            self._index.add(block, block_hashes[place])
            self.allocator.retain(block)
            seq.num_published = place + 1

    def reserve(self, seq: CachedSequence, num_rows: int) -> None:
        """Make room for `num_rows` more rows in flight. Raises `OutOfBlocks` and then changes nothing."""
        missing = self.blocks_for(seq.cached_len + seq.num_in_flight + num_rows) - len(seq.block_table)
        if missing > 0:
            last = seq.block_table[-1] if seq.block_table else None
            room = self.blocks_for(seq.expected_len) - len(seq.block_table)
            seq.block_table += self.allocator.allocate(missing, after=last, room=room)
            seq.is_contiguous = is_run(seq.block_table)

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
        if new_len % self.block_size and new_len // self.block_size < seq.num_published:
            self._make_writable(seq.block_table[new_len // self.block_size])
        seq.num_published = min(seq.num_published, new_len // self.block_size)
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
            # The end goes first: what is evicted first should be what fewest prefixes begin with.
            self.allocator.free(reversed(seq.block_table[keep:]))
            del seq.block_table[keep:]
            seq.is_contiguous = is_run(seq.block_table)

    def _copy(self, prefix: list[int], room: int) -> list[int]:
        """A copy of blocks that are held, which are freed."""
        own = self.allocator.allocate(len(prefix), room=room)
        if self.moves is not None:
            self.moves.flush()
        self.storage[:, :, self._slots_of_blocks(own)] = self.storage[:, :, self._slots_of_blocks(prefix)]
        self.allocator.free(reversed(prefix))
        return own

    def _slots_of_blocks(self, blocks: list[int]) -> torch.Tensor | slice:
        if is_run(blocks):
            return slice(blocks[0] * self.block_size, (blocks[-1] + 1) * self.block_size)
        firsts = torch.tensor(blocks, dtype=torch.int64)[:, None] * self.block_size
        return (firsts + torch.arange(self.block_size)).flatten().to(self.device)

    def _make_writable(self, block: int) -> None:
        """A published block is to be shortened, and then written to: nobody may find it, or hold it, any more."""
        if self.allocator.num_holders(block) > 1:
            raise ValueError(f"KV block {block} is read by other sequences and cannot be shortened; release instead")
        self._index.remove(block)
        self.allocator.forget(block)
