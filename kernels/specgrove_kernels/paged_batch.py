"""What a packed batch looks like to the kernels: rows of many sequences, their blocks, and who sees whom.

    packed rows    | A: prefill chunk | B: one row | C: root, tree nodes |       row_starts  [0, 4, 5, 9]
    rows in flight | a0 a1 a2 a3      | b0         | older c0, c1..c4    |       tail_starts [0, 4, 5, 10]
    tiles          | t0     t1        | t2         | t3        t4        |       a tile: rows of one sequence

A row in flight sees its sequence's cached prefix and those rows in flight that its ancestor bitmask names: bit i of the
words of 64 bits stands for row i in flight. A chain (prefill, plain decoding) sees all rows up to itself and has none.
Everything a kernel reads is a tensor of fixed shape for a given `BatchShape`, so that a captured graph can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specgrove_kernels.staging import stage

WORD_BITS = 64
_MAX_TILE_LANES = 64
NO_SEQUENCE = -1  # in `tile_seqs`: a tile that pads a bucket and does nothing


@dataclass(frozen=True, slots=True)
class SequenceInFlight:
    """One sequence of a batch: its blocks, and its rows in flight, of which the last `num_queries` ask."""

    block_table: Sequence[int]
    cached_len: int
    ancestors: Sequence[int]  # per row in flight: bitmask of the rows it sees, itself included; any size
    row_positions: Sequence[int]  # per row in flight: absolute position of its token
    num_queries: int

    def __post_init__(self) -> None:
        if len(self.ancestors) != len(self.row_positions):
            raise ValueError("ancestors and row_positions need one entry for each row in flight")
        if not 1 <= self.num_queries <= len(self.ancestors):
            raise ValueError(f"num_queries must be 1 to {len(self.ancestors)}, got {self.num_queries}")

    @property
    def is_chain(self) -> bool:
        return all(mask == (1 << (row + 1)) - 1 for row, mask in enumerate(self.ancestors))

    def slots(self, block_size: int) -> np.ndarray:  # int64 [num_queries]
        """Where the asking rows' keys and values go."""
        stop = self.cached_len + len(self.ancestors)
        places = np.arange(stop - self.num_queries, stop, dtype=np.int64)
        first = int(places[0]) // block_size
        blocks = np.array(self.block_table[first:], dtype=np.int64)
        return blocks[places // block_size - first] * block_size + places % block_size


@dataclass(frozen=True, slots=True, order=True)
class BatchShape:
    """How large the tensors of a batch are. A batch fits every shape that is nowhere smaller than its own."""

    rows: int  # N
    tiles: int  # P; there are as many places for sequences
    rows_per_tile: int
    blocks: int  # places of a block table
    words: int  # W, of an ancestor bitmask


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """A packed batch of B sequences, N asking rows, T rows in flight and P tiles; `pack_batch` makes it."""

    row_starts: torch.Tensor  # int32 [B + 1]
    tail_starts: torch.Tensor  # int32 [B + 1]
    cached_lens: torch.Tensor  # int32 [B]
    block_tables: torch.Tensor  # int32 [B, most blocks of one], filled up with 0
    is_chain: torch.Tensor  # int32 [B], 1 or 0
    ancestors: torch.Tensor  # int64 [N, W], lowest bit first; zeros for chains
    query_positions: torch.Tensor  # int32 [N]
    tail_positions: torch.Tensor  # int32 [T]; empty in a padded batch, which therefore takes no sliding window
    tile_seqs: torch.Tensor  # int32 [P]
    tile_rows: torch.Tensor  # int32 [P], first asking row of the tile within its sequence
    rows_per_tile: int
    block_size: int
    max_keys: int  # longest prefix with its tail; of a padded batch, what a block table has room for
    is_padded: bool = False  # rows, sequences and tiles may stand after the last real ones; their results are 0

    @classmethod
    def of(
        cls,
        tensors: Sequence[torch.Tensor],
        rows_per_tile: int,
        block_size: int,
        max_keys: int,
        *,
        is_padded: bool = False,
    ) -> PagedBatch:
        """A batch of what `batch_arrays` gives, on the device."""
        starts, tails, lens, tables, chains, words, positions, tail_positions, tile_seqs, tile_rows = tensors
        places = (positions, tail_positions, tile_seqs, tile_rows)
        return cls(starts, tails, lens, tables, chains, words, *places, rows_per_tile, block_size, max_keys, is_padded)

    @property
    def num_sequences(self) -> int:
        return len(self.cached_lens)


def pack_batch(
    sequences: Sequence[SequenceInFlight],
    *,
    block_size: int,
    heads_per_kv_head: int,
    device: torch.device | str = "cpu",
) -> PagedBatch:
    """The batch of `sequences`, in order. `heads_per_kv_head` sizes the tiles, whose rows share loaded keys."""
    shape = shape_of(sequences, heads_per_kv_head)
    tensors = stage(batch_arrays(sequences, shape, block_size, is_padded=False), torch.device(device))
    max_keys = max(seq.cached_len + len(seq.ancestors) for seq in sequences)
    return PagedBatch.of(tensors, shape.rows_per_tile, block_size, max_keys)


def shape_of(sequences: Sequence[SequenceInFlight], heads_per_kv_head: int) -> BatchShape:
    """The smallest shape that holds `sequences`."""
    per_tile = rows_per_tile(max(seq.num_queries for seq in sequences), heads_per_kv_head)
    widest = max((len(seq.ancestors) for seq in sequences if not seq.is_chain), default=1)
    return BatchShape(
        rows=sum(seq.num_queries for seq in sequences),
        tiles=sum(-(-seq.num_queries // per_tile) for seq in sequences),
        rows_per_tile=per_tile,
        blocks=max(len(seq.block_table) for seq in sequences),
        words=-(-widest // WORD_BITS),
    )


def batch_arrays(
    sequences: Sequence[SequenceInFlight], shape: BatchShape, block_size: int, *, is_padded: bool
) -> list[np.ndarray]:
    """The tensors of a `PagedBatch` in its order, on the host; padded to `shape` if `is_padded`.

    Raises `ValueError` when a sequence's blocks do not hold its rows in flight.
    """
    for seq in sequences:
        if len(seq.block_table) * block_size < seq.cached_len + len(seq.ancestors):
            raise ValueError(
                f"{len(seq.block_table)} blocks of {block_size} hold less than {seq.cached_len} cached tokens "
                f"and {len(seq.ancestors)} rows in flight; reserve the rows first"
            )
    num_places = shape.tiles if is_padded else len(sequences)
    tables = np.zeros((num_places, shape.blocks), dtype=np.int32)
    for number, seq in enumerate(sequences):
        tables[number, : len(seq.block_table)] = seq.block_table
    chains = [seq.is_chain for seq in sequences]
    words = np.zeros((shape.rows, shape.words), dtype=np.int64)
    first = 0
    for seq, chain in zip(sequences, chains, strict=True):
        if not chain:
            words[first : first + seq.num_queries] = _ancestor_words(seq, shape.words)
        first += seq.num_queries
    tiles = [(b, row) for b, seq in enumerate(sequences) for row in range(0, seq.num_queries, shape.rows_per_tile)]
    tails = [] if is_padded else [place for seq in sequences for place in seq.row_positions]
    return [
        _starts([seq.num_queries for seq in sequences], num_places),
        _starts([len(seq.ancestors) for seq in sequences], num_places),
        _filled([seq.cached_len for seq in sequences], num_places),
        tables,
        _filled([int(chain) for chain in chains], num_places),
        words,
        _filled([place for seq in sequences for place in seq.row_positions[-seq.num_queries :]], shape.rows),
        np.array(tails, dtype=np.int32),
        _filled([b for b, _ in tiles], shape.tiles, NO_SEQUENCE),
        _filled([row for _, row in tiles], shape.tiles),
    ]


def rows_per_tile(max_rows: int, heads_per_kv_head: int) -> int:
    """How many rows of a sequence one tile takes, when the heads that share keys count as lanes of the tile.

    A power of two: every other number would be one more kernel to compile.
    """
    most = max(1, _MAX_TILE_LANES // heads_per_kv_head)
    return min(power_of_two_above(max_rows), 1 << (most.bit_length() - 1))


def power_of_two_above(count: int) -> int:
    """The smallest power of two that is not below `count` (at least 1)."""
    return 1 << (count - 1).bit_length()


def slots_of(block_table: torch.Tensor, places: torch.Tensor, block_size: int) -> torch.Tensor:  # int64 [len(places)]
    """The slots of the `places`-th tokens of a sequence: int [blocks], int64 [K] -> int64 [K]."""
    return block_table[places // block_size].long() * block_size + places % block_size


def _starts(lengths: Sequence[int], num_places: int) -> np.ndarray:  # int32 [num_places + 1]
    """Places after the last length are empty."""
    return np.cumsum([0, *lengths, *[0] * (num_places - len(lengths))], dtype=np.int32)


def _filled(values: Sequence[int], length: int, filler: int = 0) -> np.ndarray:  # int32 [length]
    array = np.full(length, filler, dtype=np.int32)
    array[: len(values)] = values
    return array


def _ancestor_words(seq: SequenceInFlight, num_words: int) -> np.ndarray:  # int64 [num_queries, num_words]
    num_bytes = num_words * WORD_BITS // 8
    rows = [mask.to_bytes(num_bytes, "little") for mask in seq.ancestors[-seq.num_queries :]]
    return np.frombuffer(b"".join(rows), dtype="<i8").reshape(len(rows), num_words)
