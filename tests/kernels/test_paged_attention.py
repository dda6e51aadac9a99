"""Paged tree attention of packed batches against attention over the tokens that a row descends from, in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgrove_bench.gpu_check.cases import AttentionCase, AttentionInputs, Rows, inputs_of
from specgrove_kernels.backend import AttendPaged, has_triton, triton_kernels
from specgrove_kernels.paged_batch import slots_of

CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def _ancestry(rows: Rows, row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(row)
        row = rows.parents[row]
    return path


def _expected(case: AttentionCase, inputs: AttentionInputs) -> torch.Tensor:
    """Row by row: gather the keys a row sees, softmax, mix."""
    group = case.num_heads // case.num_kv_heads
    outputs = []
    for number, rows in enumerate(case.sequences):
        in_flight = len(rows.parents)
        for row in range(in_flight - rows.num_queries, in_flight):
            own_position = rows.prefix_len + rows.depths[row]
            seen = [(place, place) for place in range(rows.prefix_len)]
            seen += [(rows.prefix_len + other, rows.prefix_len + rows.depths[other]) for other in _ancestry(rows, row)]
            if case.sliding_window is not None:
                seen = [pair for pair in seen if own_position - pair[1] < case.sliding_window]
            places = torch.tensor([place for place, _ in seen])
            slots = slots_of(inputs.batch.block_tables[number], places, case.block_size)
            keys, values = (side[slots].double().repeat_interleave(group, dim=1) for side in inputs.storage)
            query = inputs.query[len(outputs)].double()
            scores = torch.einsum("hd,khd->hk", query, keys) * case.head_dim**-0.5
            if case.softcap is not None:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            outputs.append(torch.einsum("hk,khd->hd", scores.softmax(-1), values))
    return torch.stack(outputs)


def _check(attend: AttendPaged, case: AttentionCase, seed: int = 0) -> None:
    inputs = inputs_of(case, CPU, seed)
    result = attend(
        inputs.query,
        inputs.storage,
        inputs.batch,
        scaling=case.head_dim**-0.5,
        sliding_window=case.sliding_window,
        softcap=case.softcap,
    )
    assert result.dtype == case.dtype
    tolerance = TOLERANCES[case.dtype]
    torch.testing.assert_close(result.double(), _expected(case, inputs), atol=tolerance, rtol=tolerance)


MIXED = AttentionCase(
    "mixed",
    (Rows.tree(17, 9, 1), Rows.chain(0, 5), Rows.chain(33, 1), Rows.tree(15, 35, 2, num_queries=33)),
    head_dim=16,
)


@pytest.mark.parametrize(
    ("num_nodes", "prefix_len"),
    [(1, 0), (1, 1), (3, 15), (17, 16), (3, 63), (1, 64), (3, 65), (63, 17), (64, 31), (65, 33), (129, 0), (256, 1)],
)
def test_rows_see_prefix_and_ancestors_at_odd_sizes(attend: AttendPaged, num_nodes: int, prefix_len: int) -> None:
    rows = Rows.tree(prefix_len, num_nodes, seed=num_nodes)
    _check(attend, AttentionCase("tree", (rows,), num_heads=2, num_kv_heads=1, head_dim=16))


@pytest.mark.parametrize("length", [1, 16, 63, 65, 130])
def test_a_prefill_chunk_sees_what_stands_before_each_row(attend: AttendPaged, length: int) -> None:
    rows = (Rows.chain(0, length), Rows.chain(length, length))
    _check(attend, AttentionCase("chunks", rows, num_heads=2, num_kv_heads=1, head_dim=16))


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_size_is_the_same_softmax(attend: AttendPaged, head_dim: int) -> None:
    _check(attend, replace(MIXED, head_dim=head_dim, sequences=MIXED.sequences[:3]))


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (6, 2), (7, 1), (20, 1)])
def test_grouped_heads_read_their_own_key_head(attend: AttendPaged, heads: tuple[int, int]) -> None:
    _check(attend, replace(MIXED, num_heads=heads[0], num_kv_heads=heads[1], sequences=MIXED.sequences[:3]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [24, 64])
def test_half_precision_is_close_and_keeps_its_type(attend: AttendPaged, head_dim: int, dtype: torch.dtype) -> None:
    _check(attend, replace(MIXED, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("window", [1, 4, 16, 1000])
def test_a_sliding_window_counts_positions_not_rows(attend: AttendPaged, window: int) -> None:
    _check(attend, replace(MIXED, sliding_window=window))


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_scores_are_capped(attend: AttendPaged, softcap: float) -> None:
    _check(attend, replace(MIXED, softcap=softcap, sliding_window=20))


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_blocks_of_any_size_may_lie_anywhere(attend: AttendPaged, block_size: int) -> None:
    _check(attend, replace(MIXED, block_size=block_size))


def test_queries_may_be_a_view_of_heads_before_rows(attend: AttendPaged) -> None:
    inputs = inputs_of(MIXED, CPU)
    heads_first = inputs.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert not heads_first.is_contiguous()
    views, copies = (attend(query, inputs.storage, inputs.batch, scaling=0.25) for query in (heads_first, inputs.query))
    torch.testing.assert_close(views, copies, atol=1e-6, rtol=1e-6)


def test_slots_that_no_row_sees_do_not_matter(attend: AttendPaged) -> None:
    """Not even when they hold no numbers, as memory that was never written may."""
    inputs = inputs_of(replace(MIXED, sequences=(Rows.chain(5, 1), Rows.tree(17, 3))), CPU)
    used = torch.cat(
        [slots_of(inputs.batch.block_tables[number], torch.arange(length), 16) for number, length in ((0, 6), (1, 20))]
    )
    clean = attend(inputs.query, inputs.storage, inputs.batch, scaling=0.25)
    dirty = torch.full_like(inputs.storage, float("nan"))
    dirty[:, used] = inputs.storage[:, used]
    assert torch.equal(attend(inputs.query, dirty, inputs.batch, scaling=0.25), clean)


if has_triton():
    # The second pass is one program for each row and head, slow when interpreted: few rows ask.
    SHARED = AttentionCase(
        "shared",
        (Rows.tree(0, 1), Rows.chain(130, 2), Rows.tree(15, 65, 2, num_queries=5), Rows.tree(63, 3, 3)),
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
    )

    @pytest.mark.parametrize(
        ("num_splits", "case"),
        [
            (2, SHARED),
            (3, replace(SHARED, num_heads=6, num_kv_heads=2, head_dim=80)),
            (3, replace(SHARED, sliding_window=4)),
            (3, replace(SHARED, dtype=torch.float16, head_dim=64)),
            (3, replace(SHARED, dtype=torch.bfloat16, softcap=5.0)),
            (17, SHARED),  # most shares are empty
        ],
    )
    def test_shares_of_the_keys_merge_into_one_softmax(num_splits: int, case: AttentionCase) -> None:
        _check(partial(triton_kernels().paged_tree_attention, num_splits=num_splits), case)


@pytest.mark.slow
def test_a_long_prefix_is_one_softmax_however_it_is_split(attend: AttendPaged) -> None:
    rows = (Rows.tree(8192, 5, 3), Rows.chain(8191, 2))
    _check(attend, AttentionCase("8k", rows, num_heads=2, num_kv_heads=1, head_dim=64))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shapes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.booleans()), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_any_mix_of_chains_and_trees(attend: AttendPaged, shapes: list[tuple[int, int, bool]], seed: int) -> None:
    rows = tuple(
        Rows.tree(prefix, length, seed) if is_tree else Rows.chain(prefix, length, num_queries=1 + seed % length)
        for prefix, length, is_tree in shapes
    )
    _check(attend, AttentionCase("mix", rows, head_dim=16, block_size=1 + seed % 7), seed)
