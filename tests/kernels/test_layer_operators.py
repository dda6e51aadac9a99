"""What a layer does between its products: against float64 at odd sizes, and no row knows of another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("numba")
from specgrove_kernels.cpu.layer_operators import add_and_norm, attend, gate, norm, prepare
from specgrove_kernels.cpu.row_attention import KeyLists, SequenceKeys

_EPSILON = 1e-3
_SIZES = [(1, 1, 2), (1, 5, 33), (2, 3, 64), (3, 7, 576)]


def _drawn(*size: int) -> np.ndarray:
    return np.random.default_rng(sum(size)).standard_normal(size, dtype=np.float32)


def _normed(states: np.ndarray, weights: np.ndarray) -> np.ndarray:
    wide = states.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + _EPSILON) * weights[:, None]


@pytest.mark.parametrize("size", _SIZES)
def test_rows_are_added_and_normed(size: tuple[int, int, int]) -> None:
    num_models, _, hidden_size = size
    states, addend, weights = _drawn(*size), _drawn(*size) + 1, _drawn(4, num_models, hidden_size)
    normed, before = np.empty_like(states), states.copy()
    norm(states, weights, 2, _EPSILON, normed)
    np.testing.assert_allclose(normed, _normed(states, weights[2]), atol=2e-6, rtol=2e-6)
    add_and_norm(states, addend, weights, 3, _EPSILON, normed)
    np.testing.assert_array_equal(states, before + addend)
    np.testing.assert_allclose(normed, _normed(states, weights[3]), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("size", _SIZES)
def test_gates_open_as_silu_does(size: tuple[int, int, int]) -> None:
    columns = 30 * _drawn(size[0], size[1], 2 * size[2])
    columns[0, 0, 0] = -500.0
    gated = np.empty(size, dtype=np.float32)
    gate(columns, gated)
    opening, up = np.split(columns.astype(np.float64), 2, axis=-1)
    np.testing.assert_allclose(gated, opening / (1 + np.exp(-opening)) * up, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("head_dim", [2, 12, 64])
@pytest.mark.parametrize("num_models", [1, 2])
def test_queries_and_keys_turn_and_rows_find_their_own_keys_in_the_cache(num_models: int, head_dim: int) -> None:
    num_rows, num_heads, num_key_heads, scaling = 5, 4, 2, 0.3
    columns = _drawn(num_models, num_rows, (num_heads + 2 * num_key_heads) * head_dim)
    angles = _drawn(num_rows, head_dim // 2)
    turns = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(num_rows, head_dim)
    storage = _drawn(3, 2, 40, num_models * num_key_heads, head_dim)
    before, slots = storage.copy(), np.array([31, 3, 17, 8, 9])
    queries = np.empty((num_models, num_rows, num_heads, head_dim), dtype=np.float32)
    mixed = np.empty((num_models, num_rows, num_heads * head_dim), dtype=np.float32)
    keys = KeyLists.of([SequenceKeys(row, row + 1, slots[row : row + 1], None) for row in range(num_rows)])
    attend(1, columns, turns, scaling, storage, slots, keys.sequences, keys.slots, keys.visible, queries, mixed)

    by_head = columns.reshape(num_models, num_rows, -1, head_dim)
    pairs = by_head[:, :, : num_heads + num_key_heads].astype(np.float64).view(np.complex128)
    turned = (pairs * np.exp(1j * angles)[None, :, None]).view(np.float64)
    np.testing.assert_allclose(queries, turned[:, :, :num_heads] * scaling, atol=1e-6)
    for model in range(num_models):
        heads = slice(model * num_key_heads, (model + 1) * num_key_heads)
        np.testing.assert_allclose(storage[1, 0, slots, heads], turned[model, :, num_heads:], atol=1e-6)
        values = by_head[model, :, num_heads + num_key_heads :]
        np.testing.assert_array_equal(storage[1, 1, slots, heads], values)
        # A row that sees nothing but itself gets its own values.
        expected = values.repeat(num_heads // num_key_heads, axis=1).reshape(num_rows, -1)
        np.testing.assert_allclose(mixed[model], expected, atol=1e-6)
    others = np.setdiff1d(np.arange(40), slots)
    np.testing.assert_array_equal(storage[:, :, others], before[:, :, others])
    np.testing.assert_array_equal(storage[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize("hidden_size", [33, 576])
def test_no_row_changes_by_a_bit_beside_others(hidden_size: int) -> None:
    states, addend = _drawn(1, 9, 2 * hidden_size), _drawn(1, 9, 2 * hidden_size)
    weights = _drawn(1, 1, 2 * hidden_size)

    def add(rows: np.ndarray, added: np.ndarray) -> np.ndarray:
        normed = np.empty_like(rows)
        add_and_norm(rows.copy(), added, weights, 0, _EPSILON, normed)
        return normed

    def open_gates(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
        gated = np.empty((*rows.shape[:2], hidden_size), dtype=np.float32)
        gate(rows, gated)
        return gated

    operators: list[Callable[[np.ndarray, np.ndarray], np.ndarray]] = [add, open_gates]
    for operator in operators:
        together = operator(states, addend)
        for row in range(9):
            alone = operator(states[:, row : row + 1].copy(), addend[:, row : row + 1].copy())
            np.testing.assert_array_equal(alone[:, 0], together[:, row])


def test_everything_is_compiled_before_the_first_step() -> None:
    prepare()
    counts = [len(operator.signatures) for operator in (norm, add_and_norm, gate, attend)]  # type: ignore[attr-defined]
    assert counts == [1, 1, 1, 1]
