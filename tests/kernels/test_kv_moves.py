"""KV write and KV compaction against the cache of the runtime and against a copy slot by slot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgrove.runtime.kv_cache import KVCache, KVShape
from specgrove_kernels.backend import KernelSet


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(1, 64), (3, 80), (2, 5)])
def test_each_row_lands_in_its_slot_and_nowhere_else(
    kernels: KernelSet, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    before = torch.randn(2, 32, num_kv_heads, head_dim, generator=generator).to(dtype)
    # Heads before rows, as models hand them over.
    key, value = torch.randn(2, num_kv_heads, 5, head_dim, generator=generator).transpose(1, 2)
    after = before.clone()
    kernels.write_kv(key, value, after, torch.tensor([31, 0, -1, 17, 16]))
    for row, slot in ((0, 31), (1, 0), (3, 17), (4, 16)):
        assert torch.equal(after[0, slot], key[row].to(dtype))
        assert torch.equal(after[1, slot], value[row].to(dtype))
    others = [slot for slot in range(32) if slot not in (31, 0, 17, 16)]
    assert torch.equal(after[:, others], before[:, others])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix_len=st.integers(0, 9),
    kept=st.sets(st.integers(0, 11), max_size=8),
    is_wide=st.booleans(),
)
def test_compaction_moves_what_a_commit_moves(
    kernels: KernelSet, prefix_len: int, kept: set[int], is_wide: bool
) -> None:
    shape = KVShape(num_layers=3, num_kv_heads=2, head_dim=520 if is_wide else 5, dtype=torch.float32)
    cache = KVCache(shape, num_blocks=16, block_size=4)
    neighbour, seq = cache.new_sequence(), cache.new_sequence()
    cache.reserve(neighbour, 3)
    cache.reserve(seq, prefix_len + 12)
    cache.append_rows(seq, list(range(-1, prefix_len + 11)), list(range(prefix_len + 12)))
    cache.storage.copy_(torch.randn(cache.storage.shape, generator=torch.Generator().manual_seed(prefix_len)))
    rows = sorted(kept)
    table = torch.tensor(seq.block_table)
    source, target = (
        torch.tensor([int(table[(prefix_len + row) // 4]) * 4 + (prefix_len + row) % 4 for row in places]).long()
        for places in (rows, range(len(rows)))
    )
    ours = cache.storage.clone()
    # The neighbour has no moves.
    kernels.compact_kv(ours, source, target, torch.tensor([0, 0, len(rows)], dtype=torch.int32))
    cache.commit(seq, [*range(prefix_len), *(prefix_len + row for row in rows)])
    assert torch.equal(ours, cache.storage)


def test_paths_of_several_sequences_move_at_once(kernels: KernelSet) -> None:
    storage = torch.randn(2, 2, 40, 1, 8, generator=torch.Generator().manual_seed(0))
    expected = storage.clone()
    for source, target in ((3, 2), (5, 3), (6, 4), (29, 21), (30, 29)):
        expected[:, :, target] = storage[:, :, source]
    starts = torch.tensor([0, 3, 3, 5], dtype=torch.int32)
    kernels.compact_kv(storage, torch.tensor([3, 5, 6, 29, 30]), torch.tensor([2, 3, 4, 21, 29]), starts)
    assert torch.equal(storage, expected)
