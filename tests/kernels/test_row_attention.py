"""The compiled attention of rows: against float64 at odd sizes, and bit for bit the same whatever is beside a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("numba")
from specgrove_kernels.cpu.compiled import compiled
from specgrove_kernels.cpu.lanes import WIDTH, exp, load, store
from specgrove_kernels.cpu.row_attention import KeyLists, SequenceKeys, row_attention

_TOLERANCE = 2e-6


@compiled
def _exp_of_all(values: np.ndarray, results: np.ndarray) -> None:
    for place in range(0, len(values), WIDTH):
        store(results, place, exp(load(values, place)))


def _exp(values: np.ndarray) -> np.ndarray:
    results = np.empty_like(values)
    _exp_of_all(values, results)
    return results


def test_exp_is_within_two_parts_in_ten_million() -> None:
    values = np.linspace(-87, 88, 2_000_000, dtype=np.float32)
    expected = np.exp(values.astype(np.float64))
    assert np.max(np.abs(_exp(values) / expected - 1)) < 2e-7


def test_exp_of_what_has_no_finite_power_is_what_it_should_be() -> None:
    values = np.array([-np.inf, -87.5, -1e30, 0.0, 89.0, 1e30, np.inf, np.nan], dtype=np.float32)
    np.testing.assert_array_equal(_exp(values), np.array([0, 0, 0, 1, np.inf, np.inf, np.inf, np.nan]))


@dataclass(frozen=True, slots=True)
class _Shape:
    num_models: int = 1
    num_key_heads: int = 3
    group: int = 3
    head_dim: int = 64
    num_slots: int = 1400

    @property
    def num_heads(self) -> int:
        return self.num_key_heads * self.group

    def cache(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        size = (2, self.num_slots, self.num_models * self.num_key_heads, self.head_dim)
        keys, values = random.standard_normal(size, dtype=np.float32)
        return keys, values

    def queries(self, random: np.random.Generator, num_rows: int) -> np.ndarray:
        size = (self.num_models, num_rows, self.num_heads, self.head_dim)
        return random.standard_normal(size, dtype=np.float32) * np.float32(self.head_dim**-0.5)


def _attend(queries: np.ndarray, cache: tuple[np.ndarray, np.ndarray], parts: Sequence[SequenceKeys]) -> np.ndarray:
    num_models, num_rows, num_heads, head_dim = queries.shape
    mixed = np.full((num_models, num_rows, num_heads * head_dim), np.nan, dtype=np.float32)
    lists = KeyLists.of(parts)
    row_attention(queries, *cache, lists.sequences, lists.slots, lists.visible, mixed)
    return mixed


def _expected(queries: np.ndarray, cache: tuple[np.ndarray, np.ndarray], parts: Sequence[SequenceKeys]) -> np.ndarray:
    """Row by row and head by head in float64."""
    num_models, num_rows, num_heads, head_dim = queries.shape
    keys, values = (part.astype(np.float64) for part in cache)
    num_key_heads = keys.shape[1] // num_models
    mixed = np.empty((num_models, num_rows, num_heads, head_dim))
    for part in parts:
        slots = np.arange(keys.shape[0])[part.slots]
        for row in range(part.start, part.stop):
            seen = slots
            if part.visible is not None:
                tail = part.visible.shape[1]
                seen = np.concatenate(
                    [slots[: len(slots) - tail], slots[len(slots) - tail :][part.visible[row - part.start]]]
                )
            for model in range(num_models):
                for head in range(num_heads):
                    key_head = model * num_key_heads + head // (num_heads // num_key_heads)
                    scores = keys[seen, key_head] @ queries[model, row, head]
                    weights = np.exp(scores - scores.max())
                    mixed[model, row, head] = weights @ values[seen, key_head] / weights.sum()
    return mixed.reshape(num_models, num_rows, -1)


def _tree(random: np.random.Generator, num_rows: int) -> np.ndarray:  # bool [num_rows, num_rows]
    visible = np.eye(num_rows, dtype=np.bool_)
    for row in range(1, num_rows):
        visible[row] |= visible[random.integers(0, row)]
    return visible


@pytest.mark.parametrize("prefix_len", [0, 1, 15, 16, 17, 1000])
@pytest.mark.parametrize(
    "shape",
    [
        _Shape(),
        _Shape(1, 2, 1, 16),
        _Shape(1, 1, 8, 128),
        _Shape(2, 2, 2, 80),
        _Shape(3, 1, 7, 34),
        _Shape(2, 3, 3, 12),
    ],
    ids=str,
)
def test_trees_of_several_sequences_attend_as_in_float64(shape: _Shape, prefix_len: int) -> None:
    random = np.random.default_rng(prefix_len + shape.head_dim)
    cache, queries = shape.cache(random), shape.queries(random, 14)
    scattered = random.permutation(shape.num_slots)
    parts = [
        SequenceKeys(0, 1, slice(30, 31 + prefix_len), None),  # a row at the end of a chain
        SequenceKeys(1, 8, scattered[: prefix_len + 9], _tree(random, 9)[2:]),  # two rows were in flight before
        SequenceKeys(8, 14, slice(7, 13 + prefix_len), _tree(random, 6)),
    ]
    actual, expected = _attend(queries, cache, parts), _expected(queries, cache, parts)
    assert np.max(np.abs(actual - expected)) < _TOLERANCE


@pytest.mark.parametrize("shape", [_Shape(), _Shape(2, 1, 8, 128), _Shape(1, 2, 5, 34)], ids=str)
@pytest.mark.parametrize("prefix_len", [0, 1, 63, 200])
def test_a_row_in_a_tree_is_bit_for_bit_the_row_in_a_chain(shape: _Shape, prefix_len: int) -> None:
    random = np.random.default_rng(prefix_len)
    cache, queries = shape.cache(random), shape.queries(random, 17)
    tree = _tree(random, 12)
    slots = random.permutation(shape.num_slots)[: prefix_len + 12]
    other = random.permutation(shape.num_slots)[: prefix_len + 5]
    together = _attend(queries, cache, [SequenceKeys(0, 5, other, _tree(random, 5)), SequenceKeys(5, 17, slots, tree)])
    for row in range(12):
        path = np.concatenate([slots[:prefix_len], slots[prefix_len:][tree[row]]])
        # The same keys, all in one run elsewhere and all committed.
        moved = tuple(np.ascontiguousarray(part[path]) for part in cache)
        alone = _attend(queries[:, 5 + row : 6 + row].copy(), moved, [SequenceKeys(0, 1, slice(0, len(path)), None)])
        np.testing.assert_array_equal(alone[:, 0], together[:, 5 + row])


def test_what_is_not_a_number_stays_with_the_row_that_has_it() -> None:
    shape, random = _Shape(), np.random.default_rng(3)
    cache, queries = shape.cache(random), shape.queries(random, 2)
    queries[0, 0, 0, 0] = np.nan
    mixed = _attend(queries, cache, [SequenceKeys(0, 2, slice(0, 40), np.ones((2, 1), dtype=np.bool_))])
    assert np.isnan(mixed[0, 0, : shape.head_dim]).all()
    assert np.isfinite(mixed[0, 1]).all()
