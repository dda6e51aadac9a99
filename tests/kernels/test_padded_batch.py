"""Batches padded to a bucket: the real rows' results are those of the batch alone, the others are 0."""

from __future__ import annotations

import pytest
import torch

from specgrove_bench.gpu_check.cases import AttentionCase, Rows, inputs_of, scattered_tables
from specgrove_kernels.backend import KernelSet, has_triton
from specgrove_kernels.kv_write import NO_SLOT
from specgrove_kernels.paged_batch import NO_SEQUENCE, BatchShape, PagedBatch, batch_arrays, shape_of
from specgrove_kernels.staging import stage

SEQUENCES = (Rows.tree(15, 9, 1), Rows.chain(17, 1), Rows.chain(0, 3), Rows.tree(3, 65, 2, num_queries=7))
CASE = AttentionCase("padded", SEQUENCES, head_dim=16)


def padded(case: AttentionCase, grow: BatchShape) -> PagedBatch:
    """`case` in a batch that is larger by `grow`."""
    tables = scattered_tables(case.sequences, case.block_size)
    sequences = [rows.in_flight(table) for rows, table in zip(case.sequences, tables, strict=True)]
    own = shape_of(sequences, case.num_heads // case.num_kv_heads)
    shape = BatchShape(
        own.rows + grow.rows,
        own.tiles + grow.tiles,
        own.rows_per_tile,
        own.blocks + grow.blocks,
        own.words + grow.words,
    )
    arrays = batch_arrays(sequences, shape, case.block_size, is_padded=True)
    tensors = stage(arrays, torch.device("cpu"))
    return PagedBatch.of(tensors, shape.rows_per_tile, case.block_size, shape.blocks * case.block_size, is_padded=True)


@pytest.mark.parametrize("grow", [BatchShape(0, 0, 0, 0, 0), BatchShape(5, 3, 0, 7, 1), BatchShape(1, 1, 0, 60, 2)])
def test_padding_changes_no_row_and_is_zero(kernels: KernelSet, grow: BatchShape) -> None:
    inputs = inputs_of(CASE, torch.device("cpu"))
    alone = kernels.paged_tree_attention(inputs.query, inputs.storage, inputs.batch, scaling=0.25)
    query = torch.cat([inputs.query, torch.full((grow.rows, *inputs.query.shape[1:]), float("nan"))])
    together = kernels.paged_tree_attention(query, inputs.storage, padded(CASE, grow), scaling=0.25)
    assert (together[: CASE.num_rows] - alone).abs().max() <= 2e-5
    assert not together[CASE.num_rows :].any()


if has_triton():  # splits are Triton's alone

    def test_padding_is_zero_in_split_prefixes_too() -> None:
        from specgrove_kernels.paged_attention_triton import paged_tree_attention

        inputs = inputs_of(CASE, torch.device("cpu"))
        query = torch.cat([inputs.query, inputs.query[:3]])
        batch = padded(CASE, BatchShape(3, 2, 0, 1, 0))
        alone = paged_tree_attention(inputs.query, inputs.storage, inputs.batch, scaling=0.25, num_splits=3)
        together = paged_tree_attention(query, inputs.storage, batch, scaling=0.25, num_splits=3)
        assert (together[: CASE.num_rows] - alone).abs().max() <= 2e-5
        assert not together[CASE.num_rows :].any()


def test_a_padded_batch_has_places_for_as_many_sequences_as_tiles() -> None:
    batch = padded(CASE, BatchShape(2, 3, 0, 0, 0))
    assert batch.num_sequences == len(batch.tile_seqs)
    assert batch.tile_seqs.tolist()[-3:] == [NO_SEQUENCE] * 3
    assert len(set(batch.row_starts.tolist()[len(SEQUENCES) :])) == 1


def test_rows_without_a_slot_are_written_nowhere(kernels: KernelSet) -> None:
    storage = torch.zeros(2, 8, 1, 4)
    rows = torch.ones(3, 1, 4)
    kernels.write_kv(rows, rows, storage, torch.tensor([5, NO_SLOT, NO_SLOT]))
    assert storage.sum() == 8
