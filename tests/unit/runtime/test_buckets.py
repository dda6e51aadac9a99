"""Buckets: every step fits its own, few of them cover all steps, and a step too large for them has none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrove.runtime.buckets import ROWS, bucket_of
from specgrove_kernels.paged_batch import BatchShape

_SHAPES = st.builds(
    BatchShape,
    rows=st.integers(1, ROWS[-1]),
    tiles=st.integers(1, 64),
    rows_per_tile=st.sampled_from([1, 2, 4, 8, 16]),
    blocks=st.integers(1, 5000),
    words=st.integers(1, 9),
)


@given(_SHAPES)
def test_a_bucket_is_nowhere_smaller_than_the_step_and_is_its_own_bucket(shape: BatchShape) -> None:
    bucket = bucket_of(shape)
    assert bucket is not None
    assert bucket.rows >= shape.rows
    assert bucket.tiles >= shape.tiles
    assert bucket.blocks >= shape.blocks
    assert bucket.words >= shape.words
    assert bucket.rows_per_tile == shape.rows_per_tile
    assert bucket_of(bucket) == bucket


@given(st.integers(1, ROWS[-1]))
def test_padding_never_doubles_the_rows(rows: int) -> None:
    bucket = bucket_of(BatchShape(rows, 1, 1, 1, 1))
    assert bucket is not None
    assert bucket.rows < 2 * rows


@pytest.mark.parametrize(("blocks", "wanted"), [(1, 64), (64, 64), (65, 256), (257, 1024), (4096, 4096)])
def test_block_tables_grow_by_four(blocks: int, wanted: int) -> None:
    bucket = bucket_of(BatchShape(1, 1, 1, blocks, 1))
    assert bucket is not None
    assert bucket.blocks == wanted


def test_a_step_with_more_rows_than_the_largest_bucket_runs_as_it_is() -> None:
    assert bucket_of(BatchShape(ROWS[-1] + 1, 1, 1, 1, 1)) is None
