"""The block KV cache by example: who gets which blocks, what is refused, what survives a failed call."""

from __future__ import annotations

import pytest
import torch

from specgrove.runtime.kv_cache import BlockAllocator, KVCache, KVShape, OutOfBlocks

SHAPE = KVShape(1, 1, 2, torch.float32)


def _cache(num_blocks: int = 8, block_size: int = 4) -> KVCache:
    return KVCache(SHAPE, num_blocks=num_blocks, block_size=block_size)


def test_a_run_is_continued_while_it_is_free() -> None:
    allocator = BlockAllocator(8)
    assert allocator.allocate(2) == [0, 1]
    assert allocator.allocate(2, after=1) == [2, 3]


def test_a_new_sequence_starts_where_both_neighbours_can_grow() -> None:
    allocator = BlockAllocator(8)
    allocator.allocate(2)
    assert allocator.allocate(1) == [5]


def test_a_block_is_not_freed_twice() -> None:
    allocator = BlockAllocator(2)
    allocator.allocate(1)
    allocator.free([0])
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free([0])


def test_more_blocks_than_there_are_change_nothing() -> None:
    allocator = BlockAllocator(3)
    with pytest.raises(OutOfBlocks, match="4 KV blocks wanted, 3 of 3 free"):
        allocator.allocate(4)
    assert sorted(allocator.allocate(3)) == [0, 1, 2]


def test_every_block_is_found_in_a_fragmented_cache() -> None:
    allocator = BlockAllocator(9)
    allocator.allocate(9)
    allocator.free([1, 3, 5, 8])
    assert sorted(allocator.allocate(4, after=8)) == [1, 3, 5, 8]


def test_two_sequences_that_grow_in_turns_stay_in_one_run_each() -> None:
    cache = _cache(num_blocks=16)
    pair = [cache.new_sequence(), cache.new_sequence()]
    for _ in range(24):
        for seq in pair:
            cache.reserve(seq, 1)
            cache.append_rows(seq, [-1], [seq.cached_len])
            cache.commit(seq, [0])
    assert all(seq.is_contiguous for seq in pair)


def test_slots_of_one_run_are_a_view_and_of_several_an_index() -> None:
    cache = _cache(num_blocks=4)
    first, second = cache.new_sequence(), cache.new_sequence()
    cache.reserve(first, 4)
    cache.reserve(second, 4)
    cache.reserve(first, 16 - 4)
    assert cache.slots(second, 1, 3) == slice(9, 11)
    assert not first.is_contiguous
    assert cache.slots(first, 0, 12).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15]


def test_a_row_follows_an_earlier_row() -> None:
    cache = _cache()
    seq = cache.new_sequence()
    cache.reserve(seq, 3)
    with pytest.raises(ValueError, match="row 0 cannot follow row 0"):
        cache.append_rows(seq, [0], [0])


def test_a_prefix_is_only_shortened() -> None:
    cache = _cache()
    seq = cache.new_sequence()
    with pytest.raises(ValueError, match="cannot truncate 0 cached tokens to 1"):
        cache.truncate(seq, 1)


@pytest.mark.parametrize("num_rows", [65, 130])
def test_ancestors_have_any_number_of_bits(num_rows: int) -> None:
    cache = _cache(num_blocks=40)
    seq = cache.new_sequence()
    cache.reserve(seq, num_rows)
    cache.append_rows(seq, range(-1, num_rows - 1), range(num_rows))
    assert seq.ancestors[-1] == 2**num_rows - 1


def test_the_size_of_a_slot() -> None:
    assert KVShape(30, 3, 64, torch.float32).slot_bytes == 2 * 30 * 3 * 64 * 4
