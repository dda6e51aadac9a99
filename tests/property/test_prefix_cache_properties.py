"""The KV cache with shared prefixes as a state machine: holders are counted right, nothing leaks, nobody writes into a
block that somebody else reads, and whatever is found by its hash is what was computed for these very tokens."""

from __future__ import annotations

import zlib
from random import Random

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specgrove.runtime.kv_cache import CachedSequence, KVCache, KVShape, OutOfBlocks
from specgrove.runtime.placement import Anywhere, InRuns
from specgrove.runtime.prefix_cache import extend_block_hashes

MAX_SEQUENCES = 4
sequence_numbers = st.integers(0, MAX_SEQUENCES - 1)
randoms = st.randoms(use_true_random=False)
DRAFT_MARK = -1.0


def mark(tokens: list[int]) -> float:
    """Stands for the keys and values of the last of these tokens: they depend on all of them."""
    return float(zlib.crc32(bytes(tokens)) % 2**24)


class PrefixCacheMachine(RuleBasedStateMachine):
    """Sequences over two token ids, so that many begin alike, in a cache too small to keep them all."""

    @initialize(num_blocks=st.integers(2, 16), block_size=st.sampled_from([1, 2, 3]), in_runs=st.booleans())
    def start(self, num_blocks: int, block_size: int, in_runs: bool) -> None:
        self.cache = KVCache(KVShape(1, 1, 1, torch.float32), num_blocks=num_blocks, block_size=block_size)
        self.cache.allocator.placement = InRuns() if in_runs else Anywhere()
        self.seqs: list[CachedSequence] = [self.cache.new_sequence() for _ in range(MAX_SEQUENCES)]
        self.texts: list[list[int]] = [[] for _ in range(MAX_SEQUENCES)]
        self.known: dict[bytes, list[int]] = {}  # by hash, the tokens up to the end of the block

    @rule(number=sequence_numbers, num_chain=st.integers(1, 7), num_drafts=st.integers(0, 3), random=randoms)
    def run_a_step(self, number: int, num_chain: int, num_drafts: int, random: Random) -> None:
        """Committed tokens and draft rows behind them; the drafts are rejected."""
        seq, text = self.seqs[number], self.texts[number]
        before = self.cache.allocator.num_free
        try:
            self.cache.reserve(seq, num_chain + num_drafts)
        except OutOfBlocks:
            assert self.cache.allocator.num_free == before
            return
        first = seq.cached_len
        rows = num_chain + num_drafts
        self.cache.append_rows(seq, range(-1, rows - 1), range(first, first + rows))
        marks = []
        for _ in range(num_chain):
            text.append(random.randint(0, 1))
            marks.append(mark(text))
        self._write(seq, first, marks + [DRAFT_MARK] * num_drafts)
        self.cache.commit(seq, range(num_chain))

    @rule(number=sequence_numbers)
    def publish(self, number: int) -> None:
        """Told more hashes than there are full blocks, as a verifier that knows tokens whose rows are still to come."""
        self.cache.publish(self.seqs[number], self._hashes(self.texts[number] + [1, 0, 0, 1]))

    @rule(number=sequence_numbers, source=sequence_numbers, cut=st.floats(0, 1), num_more=st.integers(0, 4))
    def begin_again(self, number: int, source: int, cut: float, num_more: int) -> None:
        """A new sequence that begins like another one, which may be gone by now."""
        text = self.texts[source][: round(cut * len(self.texts[source]))] + [1, 0, 1, 1][:num_more]
        self.cache.release(self.seqs[number])
        seq = self.seqs[number] = self.cache.new_sequence(len(text) + 2)
        hashes = self._hashes(text)
        found = self._num_findable(hashes)
        self.cache.start_with(seq, hashes)
        assert seq.cached_len == found * self.cache.block_size
        self.texts[number] = text[: seq.cached_len]

    @rule(number=sequence_numbers)
    def release(self, number: int) -> None:
        self.cache.release(self.seqs[number])
        self.cache.release(self.seqs[number])
        self.seqs[number] = self.cache.new_sequence()
        self.texts[number] = []

    @rule(number=sequence_numbers, share=st.floats(0, 1))
    def truncate(self, number: int, share: float) -> None:
        seq, text = self.seqs[number], self.texts[number]
        new_len = int(share * len(text))
        place = new_len // self.cache.block_size
        if new_len % self.cache.block_size and self._holders().get(seq.block_table[place], 0) > 1:
            with pytest.raises(ValueError, match="read by other sequences"):
                self.cache.truncate(seq, new_len)
            return
        self.cache.truncate(seq, new_len)
        del text[new_len:]

    @invariant()
    def holders_are_counted(self) -> None:
        if not hasattr(self, "cache"):
            return
        allocator, holders = self.cache.allocator, self._holders()
        assert [allocator.num_holders(block) for block in range(allocator.num_blocks)] == [
            holders.get(block, 0) for block in range(allocator.num_blocks)
        ]
        assert allocator.num_free == allocator.num_blocks - len(holders)
        assert allocator.num_cached == sum(block not in holders for block in self.cache._index._hash_of)

    @invariant()
    def what_is_written_next_nobody_else_sees(self) -> None:
        holders = self._holders()
        for seq in getattr(self, "seqs", ()):
            for block in seq.block_table[seq.cached_len // self.cache.block_size :]:
                assert holders[block] == 1
                assert block not in self.cache._index._hash_of

    @invariant()
    def sequences_read_their_own_tokens(self) -> None:
        for seq, text in zip(getattr(self, "seqs", ()), getattr(self, "texts", ()), strict=True):
            assert seq.cached_len == len(text)
            if text:
                held = self.cache.storage[0, 0, self.cache.slots(seq, 0, len(text)), 0, 0]
                assert held.tolist() == [mark(text[: end + 1]) for end in range(len(text))]

    @invariant()
    def what_is_found_is_what_was_computed(self) -> None:
        if not hasattr(self, "cache"):
            return
        size = self.cache.block_size
        for block, block_hash in self.cache._index._hash_of.items():
            text = self.known[block_hash]
            held = self.cache.storage[0, 0, block * size : (block + 1) * size, 0, 0]
            assert held.tolist() == [mark(text[: end + 1]) for end in range(len(text) - size, len(text))]

    def _holders(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for seq in getattr(self, "seqs", ()):
            assert len(set(seq.block_table)) == len(seq.block_table)
            for block in seq.block_table:
                counts[block] = counts.get(block, 0) + 1
        return counts

    def _hashes(self, text: list[int]) -> list[bytes]:
        hashes: list[bytes] = []
        extend_block_hashes(hashes, text, self.cache.block_size)
        for place, block_hash in enumerate(hashes):
            assert (
                self.known.setdefault(block_hash, text[: (place + 1) * self.cache.block_size])
                == (text[: (place + 1) * self.cache.block_size])
            )
        return hashes

    def _num_findable(self, hashes: list[bytes]) -> int:
        there = set(self.cache._index._hash_of.values())
        return next((place for place, block_hash in enumerate(hashes) if block_hash not in there), len(hashes))

    def _write(self, seq: CachedSequence, first: int, marks: list[float]) -> None:
        slots = self.cache.slots(seq, first, first + len(marks))
        self.cache.storage[:, :, slots] = torch.tensor(marks).view(1, 1, -1, 1, 1)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for seq in self.seqs:
            self.cache.release(seq)
        assert self.cache.allocator.num_free == self.cache.num_blocks
        assert self.cache.allocator.allocate(self.cache.num_blocks)  # cached ones too can be had again
        assert not self.cache._index._hash_of


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(settings.get_profile("ci"), stateful_step_count=40, max_examples=150)
