"""What a packed batch looks like to the kernels: rows of many sequences, their blocks, and who sees whom.

    packed rows    | A: prefill chunk | B: one row | C: root, tree nodes |       row_starts  [0, 4, 5, 9]
    rows in flight | a0 a1 a2 a3      | b0         | older c0, c1..c4    |       tail_starts [0, 4, 5, 10]
    tiles          | t0     t1        | t2         | t3        t4        |       a tile: rows of one sequence

A row in flight sees its sequence's cached prefix and those rows in flight that its ancestor bitmask names: bit i of the
words of 64 bits stands for row i in flight. A chain (prefill, plain decoding) sees all rows up to itself and has none.
Everything a kernel reads is a tensor of fixed shape for a given bucket, so that a captured graph can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

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
    tail_positions: torch.Tensor  # int32 [T]
    tile_seqs: torch.Tensor  # int32 [P]
    tile_rows: torch.Tensor  # int32 [P], first asking row of the tile within its sequence
    rows_per_tile: int
    block_size: int
    max_keys: int  # longest prefix with its tail

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

    def int32(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    for seq in sequences:
        if len(seq.block_table) * block_size < seq.cached_len + len(seq.ancestors):
            raise ValueError(
                f"{len(seq.block_table)} blocks of {block_size} hold less than {seq.cached_len} cached tokens "
                f"and {len(seq.ancestors)} rows in flight; reserve the rows first"
            )
    most_blocks = max(len(seq.block_table) for seq in sequences)
    per_tile = rows_per_tile(max(seq.num_queries for seq in sequences), heads_per_kv_head)
    tiles = [(b, row) for b, seq in enumerate(sequences) for row in range(0, seq.num_queries, per_tile)]
    return PagedBatch(
        row_starts=int32(_starts([seq.num_queries for seq in sequences])),
        tail_starts=int32(_starts([len(seq.ancestors) for seq in sequences])),
        cached_lens=int32([seq.cached_len for seq in sequences]),
        block_tables=torch.tensor(
            [[*seq.block_table, *[0] * (most_blocks - len(seq.block_table))] for seq in sequences],
            dtype=torch.int32,
            device=device,
        ),
        is_chain=int32([int(seq.is_chain) for seq in sequences]),
        ancestors=_ancestor_words(sequences).to(device),
        query_positions=int32([place for seq in sequences for place in seq.row_positions[-seq.num_queries :]]),
        tail_positions=int32([place for seq in sequences for place in seq.row_positions]),
        tile_seqs=int32([b for b, _ in tiles]),
        tile_rows=int32([row for _, row in tiles]),
        rows_per_tile=per_tile,
        block_size=block_size,
        max_keys=max(seq.cached_len + len(seq.ancestors) for seq in sequences),
    )


def rows_per_tile(max_rows: int, heads_per_kv_head: int) -> int:
    """How many rows of a sequence one tile takes, when the heads that share keys count as lanes of the tile."""
    return max(1, min(max_rows, _MAX_TILE_LANES // heads_per_kv_head))


def slots_of(block_table: torch.Tensor, places: torch.Tensor, block_size: int) -> torch.Tensor:  # int64 [len(places)]
    """The slots of the `places`-th tokens of a sequence: int [blocks], int64 [K] -> int64 [K]."""
    return block_table[places // block_size].long() * block_size + places % block_size


def _starts(lengths: Sequence[int]) -> list[int]:
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    return starts


def _ancestor_words(sequences: Sequence[SequenceInFlight]) -> torch.Tensor:  # int64 [N, W]
    chains = [seq.is_chain for seq in sequences]
    widest = max((len(seq.ancestors) for seq, chain in zip(sequences, chains, strict=True) if not chain), default=1)
    num_words = -(-widest // WORD_BITS)
    num_bytes = num_words * WORD_BITS // 8
    rows = [
        bytes(num_bytes) if chain else mask.to_bytes(num_bytes, "little")
        for seq, chain in zip(sequences, chains, strict=True)
        for mask in seq.ancestors[-seq.num_queries :]
    ]
    return torch.from_numpy(np.frombuffer(b"".join(rows), dtype="<i8").reshape(len(rows), num_words).copy())
