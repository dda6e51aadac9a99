"""Shared prefixes by example: what a hash is of, who gets which blocks, what is thrown out, when a prefix is copied."""

from __future__ import annotations

import pytest
import torch

from specgrove.runtime.blocks import BlockAllocator
from specgrove.runtime.kv_cache import CachedSequence, KVCache, KVShape
from specgrove.runtime.placement import Anywhere
from specgrove.runtime.prefix_cache import PrefixIndex, extend_block_hashes

BLOCK_SIZE = 4


def _cache(num_blocks: int = 16) -> KVCache:
    return KVCache(KVShape(1, 1, 1, torch.float32), num_blocks=num_blocks, block_size=BLOCK_SIZE)


def _hashes(tokens: list[int]) -> list[bytes]:
    hashes: list[bytes] = []
    extend_block_hashes(hashes, tokens, BLOCK_SIZE)
    return hashes


def _extend(cache: KVCache, seq: CachedSequence, tokens: list[int]) -> None:
    """Cache and publish `tokens`, of which some may be cached already; a slot holds its token."""
    start = seq.cached_len
    num_rows = len(tokens) - start
    cache.reserve(seq, num_rows)
    cache.append_rows(seq, range(-1, num_rows - 1), range(start, len(tokens)))
    cache.storage[0, :, cache.slots(seq, start, len(tokens)), 0, 0] = torch.tensor(tokens[start:], dtype=torch.float32)
    cache.commit(seq, range(num_rows))
    cache.publish(seq, _hashes(tokens))


def _begin(cache: KVCache, tokens: list[int], expected_len: int = 0) -> CachedSequence:
    seq = cache.new_sequence(expected_len)
    cache.start_with(seq, _hashes(tokens))
    return seq


def _cached_tokens(cache: KVCache, seq: CachedSequence) -> list[float]:
    return cache.storage[0, 0, cache.slots(seq, 0, seq.cached_len), 0, 0].tolist()


def test_a_hash_is_of_everything_up_to_the_end_of_its_block() -> None:
    one, other = _hashes([1, 2, 3, 4, 5, 6, 7, 8]), _hashes([9, 2, 3, 4, 5, 6, 7, 8])
    assert len(set(one + other)) == 4


def test_hashes_come_the_same_in_one_go_and_token_by_token() -> None:
    tokens = list(range(23))
    slowly: list[bytes] = []
    for end in range(len(tokens) + 1):
        extend_block_hashes(slowly, tokens[:end], BLOCK_SIZE)
        assert len(slowly) == end // BLOCK_SIZE
    assert slowly == _hashes(tokens)


def test_ids_that_share_bytes_hash_apart() -> None:
    assert _hashes([1, 0, 0, 256]) != _hashes([1, 0, 0, 1])
    assert _hashes([0, 2**31, 0, 0]) != _hashes([0, 0, 2**31, 0])


def test_a_prefix_outlives_its_sequence() -> None:
    cache = _cache()
    seq = cache.new_sequence()
    _extend(cache, seq, list(range(10)))
    cache.release(seq)
    assert cache.usage == 0
    again = _begin(cache, list(range(10)))
    assert again.cached_len == 8
    assert _cached_tokens(cache, again) == list(range(8))


def test_the_search_ends_where_the_tokens_differ() -> None:
    cache = _cache()
    _extend(cache, cache.new_sequence(), list(range(12)))
    assert _begin(cache, [*range(5), 99, *range(6, 12)]).cached_len == 4
    assert _begin(cache, [99, *range(1, 12)]).cached_len == 0


def test_rows_in_flight_are_not_found() -> None:
    cache = _cache()
    seq = cache.new_sequence()
    cache.reserve(seq, 8)
    cache.append_rows(seq, range(-1, 7), range(8))
    cache.publish(seq, _hashes(list(range(8))))
    assert _begin(cache, list(range(8))).cached_len == 0
    cache.commit(seq, range(5))
    cache.publish(seq, _hashes(list(range(8))))
    assert _begin(cache, list(range(8))).cached_len == 4


def test_a_session_that_comes_back_goes_on_in_its_own_blocks() -> None:
    cache = _cache()
    seq = cache.new_sequence()
    _extend(cache, seq, list(range(8)))
    table = list(seq.block_table)
    cache.release(seq)
    again = _begin(cache, list(range(30)), expected_len=30)
    assert again.block_table == table
    _extend(cache, again, list(range(30)))
    assert again.is_contiguous
    assert cache.allocator.num_evictions == 0


def test_two_that_begin_alike_both_stay_in_one_run() -> None:
    """The second one's rows cannot follow the shared blocks, where the first one's lie: it gets a copy."""
    cache = _cache()
    first = cache.new_sequence()
    _extend(cache, first, list(range(10)))
    second = _begin(cache, list(range(12)), expected_len=14)
    assert second.cached_len == 8
    assert not set(second.block_table) & set(first.block_table)
    _extend(cache, second, [*range(8), 90, 91, 92, 93, 94])
    assert second.is_contiguous
    assert _cached_tokens(cache, first) == list(range(10))
    assert _cached_tokens(cache, second) == [*range(8), 90, 91, 92, 93, 94]


def test_where_blocks_may_lie_anywhere_they_are_shared() -> None:
    cache = _cache()
    cache.allocator.placement = Anywhere()
    first = cache.new_sequence()
    _extend(cache, first, list(range(10)))
    assert cache.num_prefix_blocks_shared(_hashes(list(range(12)))) == 2
    second = _begin(cache, list(range(12)))
    assert second.block_table == first.block_table[:2]
    cache.release(first)
    _extend(cache, second, list(range(12)))
    assert _cached_tokens(cache, second) == list(range(12))
    assert cache.num_prefix_blocks_shared(_hashes([99] * 8)) == 0


def test_a_session_that_comes_back_does_not_run_over_newer_text_of_another() -> None:
    """Both conversations begin with the same four blocks; the second one's lie right behind them and are newer."""
    cache = _cache(num_blocks=24)
    system = list(range(16))
    for turn in (60, 70):
        seq = _begin(cache, [*system, *range(turn, turn + 8)], expected_len=28)
        _extend(cache, seq, [*system, *range(turn, turn + 8)])
        cache.release(seq)
    assert cache.allocator.num_evictions == 0
    for turn in (60, 70):
        assert _begin(cache, [*system, *range(turn, turn + 9)]).cached_len == 24


def test_free_blocks_are_used_up_before_anything_is_thrown_out() -> None:
    cache = _cache(num_blocks=8)
    for start in (0, 100, 200, 300):
        seq = cache.new_sequence()
        _extend(cache, seq, list(range(start, start + 8)))
        cache.release(seq)
    assert cache.allocator.num_evictions == 0
    assert cache.allocator.num_cached == 8


@pytest.mark.parametrize("anywhere", [False, True])
def test_what_was_used_longest_ago_is_thrown_out_first(anywhere: bool) -> None:
    cache = _cache(num_blocks=6)
    if anywhere:
        cache.allocator.placement = Anywhere()
    for start in (0, 100, 200):
        seq = cache.new_sequence()
        _extend(cache, seq, list(range(start, start + 8)))
        cache.release(seq)
    cache.release(_begin(cache, list(range(8))))  # used again: now 100.. is the oldest
    _extend(cache, cache.new_sequence(), list(range(400, 408)))
    found = [_begin(cache, list(range(start, start + 8))).cached_len for start in (0, 100, 200)]
    assert found == [8, 0, 8]
    assert cache.allocator.num_evictions == 2


def test_of_one_text_the_end_is_thrown_out_first() -> None:
    cache = _cache(num_blocks=4)
    cache.allocator.placement = Anywhere()
    seq = cache.new_sequence()
    _extend(cache, seq, list(range(16)))
    cache.release(seq)
    other = cache.new_sequence()
    cache.reserve(other, 1)
    assert _begin(cache, list(range(16))).cached_len == 12


def test_a_held_block_is_never_thrown_out() -> None:
    cache = _cache(num_blocks=4)
    seq = cache.new_sequence()
    _extend(cache, seq, list(range(8)))
    with pytest.raises(Exception, match="3 KV blocks wanted, 2 of 4 free"):
        cache.reserve(cache.new_sequence(), 12)
    assert _cached_tokens(cache, seq) == list(range(8))


def test_a_block_that_others_read_cannot_be_shortened() -> None:
    cache = _cache()
    cache.allocator.placement = Anywhere()
    first = cache.new_sequence()
    _extend(cache, first, list(range(8)))
    second = _begin(cache, list(range(8)))
    with pytest.raises(ValueError, match="read by other sequences"):
        cache.truncate(first, 6)
    cache.release(second)
    cache.truncate(first, 6)
    assert _begin(cache, list(range(8))).cached_len == 4  # the shortened block may be written to: nobody finds it


def test_a_free_block_cannot_be_held() -> None:
    with pytest.raises(AssertionError, match="nothing in it to hold"):
        BlockAllocator(2).hold([1])


def test_of_several_places_the_ones_side_by_side_are_taken() -> None:
    index = PrefixIndex()
    for block, block_hash in ((3, b"a"), (9, b"b"), (4, b"b"), (7, b"a"), (8, b"b"), (9 + 1, b"c")):
        index.add(block, block_hash)
    assert index.longest_prefix([b"a", b"b"]) in ([3, 4], [7, 8])
    index.remove(8)
    index.remove(4)
    assert index.longest_prefix([b"a", b"b", b"c", b"d"]) == [7, 9, 10]
