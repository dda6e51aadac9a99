"""Compiled int8 products of few rows: those of float64, and no bit of a row depends on the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specgrove.runtime.int8_linear import Int8Linear, is_int8_supported

pytest.importorskip("numba")
from specgrove_kernels.cpu.compiled import compiled
from specgrove_kernels.cpu.fed_states import map_rows
from specgrove_kernels.cpu.int8_rows import Int8Rows, is_supported, multiply_rows, padded_width, split_row
from specgrove_kernels.cpu.large_pages import room_for

pytestmark = pytest.mark.skipif(
    not (is_int8_supported() and is_supported()), reason="needs a CPU with AVX512 VNNI and torch's fbgemm"
)
_SHAPES = [(64, 64), (65, 48), (33, 50), (200, 112), (960, 576), (1, 3), (576, 1536)]


@compiled
def _product(
    rows: np.ndarray,
    addresses: np.ndarray,
    split: np.ndarray,
    sums: np.ndarray,
    sizes: np.ndarray,
    out: np.ndarray,
    is_added: bool,
) -> None:
    for row in range(len(rows)):
        split_row(rows[row], split[2 * row], split[2 * row + 1], sums, sizes, row)
    width = out.shape[1]
    multiply_rows(addresses, width, split, sums, sizes, len(rows), out.reshape(out.size), 0, width, is_added)


def product(matrix: Int8Rows, rows: np.ndarray, added_to: np.ndarray | None = None) -> np.ndarray:
    count = len(rows)
    split = np.empty((2 * count, padded_width(rows.shape[1])), dtype=np.int8)
    out = np.empty((count, matrix.num_outputs), dtype=np.float32) if added_to is None else added_to.copy()
    sums, sizes = np.empty(2 * count, dtype=np.int32), np.empty(count, dtype=np.float32)
    _product(rows, np.array(matrix.addresses), split, sums, sizes, out, added_to is not None)
    return out


def random_matrix(
    shape: tuple[int, int], seed: int, *, has_bias: bool = False
) -> tuple[Int8Rows, np.ndarray, np.ndarray]:
    """As compiled functions read it, as float64, and its bias."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)
    scales = torch.rand(shape[0], generator=generator) + 0.1
    bias = torch.randn(shape[0], generator=generator) if has_bias else None
    exact = (steps.double() * scales[:, None].double()).numpy()
    return Int8Rows.of(steps, scales, bias), exact, np.zeros(shape[0]) if bias is None else bias.double().numpy()


def random_rows(count: int, width: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return rows * np.float32(10.0) ** np.arange(-3, count - 3, dtype=np.float32)[:, None]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", _SHAPES)
def test_products_are_those_of_float64(shape: tuple[int, int], has_bias: bool) -> None:
    matrix, exact, bias = random_matrix(shape, 1, has_bias=has_bias)
    for count in range(1, 8):
        rows = random_rows(count, shape[1])
        expected = rows.astype(np.float64) @ exact.T
        size = np.abs(rows).max(axis=1, keepdims=True) * np.abs(exact).sum(axis=1)
        assert (np.abs(product(matrix, rows) - bias - expected) <= 3e-5 * size + 1e-6).all()


@pytest.mark.parametrize("shape", _SHAPES)
def test_a_row_is_bit_for_bit_what_it_is_alone(shape: tuple[int, int]) -> None:
    matrix, _, _ = random_matrix(shape, 2)
    rows = random_rows(9, shape[1])
    together = product(matrix, rows)
    for row in range(9):
        np.testing.assert_array_equal(together[row], product(matrix, rows[row : row + 1])[0])


def test_products_can_be_added_to_what_is_there() -> None:
    matrix, _, _ = random_matrix((130, 72), 3)
    rows, before = random_rows(4, 72), random_rows(4, 130, seed=1)
    np.testing.assert_allclose(product(matrix, rows, before), before + product(matrix, rows), rtol=1e-6, atol=1e-6)


def test_zeros_give_zeros() -> None:
    matrix, _, _ = random_matrix((70, 20), 4)
    assert not product(matrix, np.zeros((2, 20), dtype=np.float32)).any()


@pytest.mark.parametrize("has_bias", [False, True])
def test_it_is_the_product_of_an_int8_linear(has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(300, 176, generator=generator)
    linear = Int8Linear.from_weight(weight, torch.randn(300, generator=generator) if has_bias else None)
    rows = torch.randn(6, 176, generator=generator)
    expected = linear(rows).numpy()
    assert np.abs(product(linear.few_rows, rows.numpy()) - expected).max() <= 1e-4 * np.abs(expected).max()


def test_rows_go_through_their_own_maps_scaled_by_input() -> None:
    generator = torch.Generator().manual_seed(6)
    steps = torch.randint(-127, 128, (3, 40, 24), dtype=torch.int8, generator=generator)
    scales = torch.rand(3, 40, generator=generator) + 0.01
    kept = [Int8Rows.of(one.T, torch.ones(24)) for one in steps]
    table = np.array([(*one.addresses, scale.data_ptr()) for one, scale in zip(kept, scales, strict=True)])
    rows = torch.randn(5, 40, generator=generator)
    added = torch.randn(24, generator=generator)
    out = np.full((5, 24), np.nan, dtype=np.float32)
    numbers = np.array([[2, 0, 2, -1, 1], [added.data_ptr(), 0, 0, 0, added.data_ptr()]])
    map_rows(table, numbers, rows.numpy(), out)
    maps = steps.double() * scales[..., None].double()
    expected = [rows[row].double() @ maps[number] for row, number in enumerate([2, 0, 2, 0, 1])]
    expected[0], expected[4] = expected[0] + added, expected[4] + added
    expected[3] = rows[3, :24].double()
    torch.testing.assert_close(torch.from_numpy(out).double(), torch.stack(expected), rtol=1e-3, atol=2e-2)
    np.testing.assert_array_equal(out[3], rows[3, :24].numpy())


def test_matrices_share_pieces_of_memory_and_begin_with_cache_lines() -> None:
    parts = [room_for(size) for size in (1, 100, 4096, 7)]
    assert all(part.ctypes.data % 64 == 0 for part in parts)
    for number, part in enumerate(parts):
        part[:] = number
    assert [set(part.tolist()) for part in parts] == [{0}, {1}, {2}, {3}]
    assert len(room_for(40 << 20)) == 40 << 20
