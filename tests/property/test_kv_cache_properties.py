"""The block KV cache as a state machine: no block leaks or is freed twice, and no kept row is ever lost or mixed up."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specgrove.runtime.kv_cache import CachedSequence, KVCache, KVShape, OutOfBlocks

MAX_SEQUENCES = 5
sequence_numbers = st.integers(0, MAX_SEQUENCES - 1)


class _Model:
    """What a sequence should hold: the mark of every cached row, and of every row in flight."""

    def __init__(self, seq: CachedSequence) -> None:
        self.seq = seq
        self.cached: list[int] = []
        self.in_flight: list[int] = []
        self.seen_by_row: list[frozenset[int]] = []


class KVCacheMachine(RuleBasedStateMachine):
    """Random operations on a few sequences over a cache that is too small for them."""

    @initialize(num_blocks=st.integers(1, 14), block_size=st.sampled_from([1, 2, 3, 4, 7]))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.cache = KVCache(KVShape(2, 1, 2, torch.float32), num_blocks=num_blocks, block_size=block_size)
        self.models = [_Model(self.cache.new_sequence()) for _ in range(MAX_SEQUENCES)]
        self.marks = itertools.count(1)

    @rule(number=sequence_numbers, num_rows=st.integers(1, 9), random=st.randoms(use_true_random=False))
    def write_rows(self, number: int, num_rows: int, random: object) -> None:
        model = self.models[number]
        seq = model.seq
        free_before, table_before = self.cache.allocator.num_free, list(seq.block_table)
        try:
            self.cache.reserve(seq, num_rows)
        except OutOfBlocks:
            assert self.cache.allocator.num_free == free_before
            assert seq.block_table == table_before
            needed = self.cache.blocks_for(seq.cached_len + seq.num_in_flight + num_rows) - len(table_before)
            assert needed > free_before
            return
        first = len(model.cached) + len(model.in_flight)
        parents = [random.randint(-1, seq.num_in_flight + row - 1) for row in range(num_rows)]  # type: ignore[attr-defined]
        self.cache.append_rows(seq, parents, range(first, first + num_rows))
        for parent in parents:
            above = frozenset() if parent < 0 else model.seen_by_row[parent]
            model.seen_by_row.append(above | {len(model.seen_by_row)})
        marks = [next(self.marks) for _ in range(num_rows)]
        slots = self.cache.slots(seq, first, first + num_rows)
        for layer, kind in itertools.product(range(2), range(2)):
            self.cache.storage[layer, kind, slots] = _rows_of(marks, layer, kind)
        model.in_flight += marks

    @rule(number=sequence_numbers, num_rows=st.integers(1, 9))
    def reserve_without_writing(self, number: int, num_rows: int) -> None:
        """As a step does for generations that it drops again before the forward."""
        with contextlib.suppress(OutOfBlocks):
            self.cache.reserve(self.models[number].seq, num_rows)

    @rule(number=sequence_numbers, random=st.randoms(use_true_random=False))
    def commit(self, number: int, random: object) -> None:
        model = self.models[number]
        kept = [row for row in range(len(model.in_flight)) if random.random() < 0.6]  # type: ignore[attr-defined]
        self.cache.commit(model.seq, kept)
        model.cached += [model.in_flight[row] for row in kept]
        self._forget_rows(model)

    @rule(number=sequence_numbers)
    def rollback(self, number: int) -> None:
        self.cache.rollback(self.models[number].seq)
        self._forget_rows(self.models[number])

    @rule(number=sequence_numbers, share=st.floats(0, 1))
    def truncate(self, number: int, share: float) -> None:
        model = self.models[number]
        new_len = int(share * len(model.cached))
        self.cache.truncate(model.seq, new_len)
        del model.cached[new_len:]
        self._forget_rows(model)

    @rule(number=sequence_numbers)
    def release(self, number: int) -> None:
        seq = self.models[number].seq
        self.cache.release(seq)
        self.cache.release(seq)
        assert seq.block_table == []
        self.models[number] = _Model(self.cache.new_sequence())

    @rule(number=sequence_numbers, row=st.integers(-3, 12))
    def refuse_rows_that_are_not_there(self, number: int, row: int) -> None:
        model = self.models[number]
        if not 0 <= row < len(model.in_flight):
            with pytest.raises(ValueError, match="kept rows"):
                self.cache.commit(model.seq, [row])
        else:
            with pytest.raises(ValueError, match="kept rows"):
                self.cache.commit(model.seq, [row, row])

    @invariant()
    def every_block_has_one_owner_or_none(self) -> None:
        if not hasattr(self, "cache"):
            return
        owned = [block for model in self.models for block in model.seq.block_table]
        assert len(owned) == len(set(owned))
        allocator = self.cache.allocator
        assert allocator.num_free == allocator.num_blocks - len(owned)
        assert self.cache.usage == pytest.approx(len(owned) / allocator.num_blocks)

    @invariant()
    def every_row_reads_back(self) -> None:
        for model in getattr(self, "models", ()):
            marks = model.cached + model.in_flight
            assert model.seq.cached_len == len(model.cached)
            assert model.seq.num_in_flight == len(model.in_flight)
            if marks:
                slots = self.cache.slots(model.seq, 0, len(marks))
                for layer, kind in itertools.product(range(2), range(2)):
                    assert torch.equal(self.cache.storage[layer, kind, slots], _rows_of(marks, layer, kind))

    @invariant()
    def every_row_sees_its_ancestors(self) -> None:
        for model in getattr(self, "models", ()):
            bits = [{row for row in range(64) if mask >> row & 1} for mask in model.seq.ancestors]
            assert bits == model.seen_by_row

    def _forget_rows(self, model: _Model) -> None:
        model.in_flight, model.seen_by_row = [], []
        assert len(model.seq.block_table) == self.cache.blocks_for(model.seq.cached_len)

    def teardown(self) -> None:
        for model in getattr(self, "models", ()):
            self.cache.release(model.seq)
        if hasattr(self, "cache"):
            assert self.cache.allocator.num_free == self.cache.num_blocks
            assert self.cache.allocator.allocate(self.cache.num_blocks)  # and each can be had again


def _rows_of(marks: list[int], layer: int, kind: int) -> torch.Tensor:  # [N, 1, 2]
    """A value that names the row, the layer, and whether it is a key or a value."""
    return torch.tensor([[[mark * 4.0 + layer * 2 + kind, -mark * 1.0]] for mark in marks])


TestKVCache = KVCacheMachine.TestCase
TestKVCache.settings = settings(settings.get_profile("ci"), stateful_step_count=30)
