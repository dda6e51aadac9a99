"""The packing of a batch: who sees whom in words of 64 bits, tiles of one sequence each, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrove_bench.gpu_check.cases import Rows
from specgrove_kernels.paged_batch import SequenceInFlight, pack_batch


@settings(max_examples=20, deadline=None)
@given(num_nodes=st.sampled_from([1, 2, 63, 64, 65, 128, 129, 200]), seed=st.integers(0, 99))
def test_bit_i_of_a_rows_words_is_row_i(num_nodes: int, seed: int) -> None:
    seq = Rows.tree(3, num_nodes, seed).in_flight(range(num_nodes + 3))
    batch = pack_batch([seq], block_size=1, heads_per_kv_head=1)
    if seq.is_chain:
        assert batch.is_chain.tolist() == [1]
        return
    bits = (batch.ancestors[:, :, None] >> torch.arange(64)) & 1  # [N, W, 64]
    read = [sum(bit << place for place, bit in enumerate(row)) for row in bits.flatten(1).tolist()]
    assert read == list(seq.ancestors)


def test_tiles_cover_each_asking_row_once_and_never_two_sequences() -> None:
    sequences = [Rows.chain(0, 70).in_flight(range(70)), Rows.chain(2, 9, num_queries=5).in_flight(range(11))]
    batch = pack_batch(sequences, block_size=1, heads_per_kv_head=4)
    covered = [
        (seq, row + place)
        for seq, row in zip(batch.tile_seqs.tolist(), batch.tile_rows.tolist(), strict=True)
        for place in range(batch.rows_per_tile)
        if row + place < sequences[seq].num_queries
    ]
    assert covered == [(0, row) for row in range(70)] + [(1, row) for row in range(5)]


def test_the_last_rows_in_flight_ask() -> None:
    batch = pack_batch([Rows.chain(7, 5, num_queries=2).in_flight(range(3))], block_size=4, heads_per_kv_head=1)
    assert batch.query_positions.tolist() == [10, 11]
    assert batch.tail_positions.tolist() == [7, 8, 9, 10, 11]
    assert (batch.row_starts.tolist(), batch.tail_starts.tolist()) == ([0, 2], [0, 5])
    assert batch.max_keys == 12


def test_rows_without_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="reserve the rows first"):
        pack_batch([Rows.chain(7, 2).in_flight(range(2))], block_size=4, heads_per_kv_head=1)


@pytest.mark.parametrize("num_queries", [0, 3])
def test_only_rows_in_flight_can_ask(num_queries: int) -> None:
    with pytest.raises(ValueError, match="num_queries must be 1 to 2"):
        SequenceInFlight([0], 0, [1, 3], [0, 1], num_queries)


def test_a_chain_needs_no_wide_words() -> None:
    batch = pack_batch(
        [Rows.chain(0, 500).in_flight(range(500)), Rows.tree(0, 9).in_flight(range(9))],
        block_size=1,
        heads_per_kv_head=1,
    )
    assert batch.ancestors.shape == (509, 1)
    assert torch.equal(batch.ancestors[:500], torch.zeros(500, 1, dtype=torch.int64))
