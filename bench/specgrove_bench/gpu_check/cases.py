"""Random packed batches for checks and timings: prefill chunks, plain rows and trees over scattered blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specgrove_kernels.paged_batch import PagedBatch, SequenceInFlight, pack_batch


@dataclass(frozen=True, slots=True)
class Rows:
    """One sequence of a batch: its prefix and its rows in flight, as parents (-1: follows the prefix)."""

    prefix_len: int
    parents: tuple[int, ...]
    num_queries: int

    @classmethod
    def chain(cls, prefix_len: int, length: int, num_queries: int | None = None) -> Rows:
        return cls(prefix_len, tuple(range(-1, length - 1)), num_queries or length)

    @classmethod
    def tree(cls, prefix_len: int, num_nodes: int, seed: int = 0, num_queries: int | None = None) -> Rows:
        """A random tree, parents first."""
        choose = random.Random(seed)
        parents = (-1, *(choose.randrange(node) for node in range(1, num_nodes)))
        return cls(prefix_len, parents, num_queries or num_nodes)

    @property
    def depths(self) -> tuple[int, ...]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def in_flight(self, block_table: Sequence[int]) -> SequenceInFlight:
        masks: list[int] = []
        for row, parent in enumerate(self.parents):
            masks.append((1 << row) | (masks[parent] if parent >= 0 else 0))
        positions = [self.prefix_len + depth for depth in self.depths]
        return SequenceInFlight(block_table, self.prefix_len, masks, positions, self.num_queries)


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A batch at a model's shape."""

    name: str
    sequences: tuple[Rows, ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    block_size: int = 16
    sliding_window: int | None = None
    softcap: float | None = None

    @property
    def num_rows(self) -> int:
        return sum(rows.num_queries for rows in self.sequences)


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What the attention of a case takes."""

    query: torch.Tensor  # [N, H, D]
    storage: torch.Tensor  # [2, slots, H_kv, D]
    batch: PagedBatch


def scattered_tables(sequences: Sequence[Rows], block_size: int, seed: int = 0) -> list[list[int]]:
    """A block table for each sequence; the blocks of all of them shuffled among one another."""
    counts = [-(-(rows.prefix_len + len(rows.parents)) // block_size) for rows in sequences]
    blocks = list(range(sum(counts)))
    random.Random(seed).shuffle(blocks)
    return [[blocks.pop() for _ in range(count)] for count in counts]


def inputs_of(case: AttentionCase, device: torch.device, seed: int = 0) -> AttentionInputs:
    """Seeded random inputs of `case`; the rows' own keys and values are in the storage already."""
    tables = scattered_tables(case.sequences, case.block_size, seed)
    batch = pack_batch(
        [rows.in_flight(table) for rows, table in zip(case.sequences, tables, strict=True)],
        block_size=case.block_size,
        heads_per_kv_head=case.num_heads // case.num_kv_heads,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(seed)
    num_slots = sum(map(len, tables)) * case.block_size

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(case.dtype)

    return AttentionInputs(
        drawn(case.num_rows, case.num_heads, case.head_dim),
        drawn(2, num_slots, case.num_kv_heads, case.head_dim),
        batch,
    )


def mixed_batch(block_size: int, longest_prefix: int) -> tuple[Rows, ...]:
    """Plain rows, a prefill chunk and trees of 1 to 256 nodes at the edges of blocks, with older rows in flight."""
    return (
        Rows.chain(0, 17),
        Rows.chain(1, 1),
        Rows.tree(block_size - 1, 3, 1),
        Rows.tree(block_size, 63, 2),
        Rows.tree(block_size + 1, 65, 3, num_queries=40),
        Rows.tree(5 * block_size, 256, 4),
        Rows.chain(longest_prefix, 4, num_queries=2),
        Rows.tree(longest_prefix, 64, 5),
    )
