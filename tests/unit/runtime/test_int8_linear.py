"""Products with int8 weights: how far off they may be, and that no row depends on its neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from specgrove.errors import ModelLoadError
from specgrove.runtime import int8_linear, loading
from specgrove.runtime.int8_linear import Int8Linear
from specgrove.runtime.int8_weights import dequantize_rows, quantize_rows
from specgrove.runtime.loading import load_model
from specgrove.runtime.packed_linear import is_packing_supported, pack_linear_layers
from support.tiny_models import own_model, write_tiny_model

pytestmark = pytest.mark.skipif(not is_packing_supported(), reason="fbgemm is for x86")


def relative_error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours - exact).norm() / exact.norm())


@pytest.mark.parametrize("num_rows", [1, 3, 17])
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (5, 33), (64, 48)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_right_within_rounding(num_rows: int, out_features: int, in_features: int, has_bias: bool) -> None:
    torch.manual_seed(num_rows)
    linear = nn.Linear(in_features, out_features, bias=has_bias)
    rows = torch.randn(1, num_rows, in_features)
    bias = linear.bias if has_bias else None
    ours = Int8Linear.from_weight(linear.weight, bias)(rows)
    assert ours.shape == (1, num_rows, out_features)
    assert relative_error(ours, linear(rows).detach()) < 0.02


@pytest.mark.parametrize("num_rows", [1, 5])
@pytest.mark.parametrize("steps", [127, 63])  # with VNNI and without
def test_weights_that_are_int8_rows_already_lose_nothing(
    num_rows: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if steps <= int8_linear._STEPS:
        monkeypatch.setattr(int8_linear, "_STEPS", steps)
        monkeypatch.setattr(int8_linear, "_ZERO", steps + 1)
    torch.manual_seed(0)
    weight = dequantize_rows(*quantize_rows(torch.randn(40, 64)))
    rows = torch.randn(num_rows, 64)
    rows[:, 3] *= 30.0  # a channel that leaves the others a handful of int8 steps
    assert relative_error(Int8Linear.from_weight(weight)(rows), rows @ weight.T) < 2e-3


def test_no_rows_give_no_rows() -> None:
    assert Int8Linear.from_weight(torch.randn(4, 8))(torch.zeros(1, 0, 8)).shape == (1, 0, 4)


def test_a_row_of_zeros_and_a_weight_of_zeros_give_zeros() -> None:
    linear = Int8Linear.from_weight(torch.zeros(4, 8))
    assert not linear(torch.randn(2, 8)).any()
    assert not Int8Linear.from_weight(torch.randn(4, 8))(torch.zeros(2, 8)).any()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(0)
    linear, rows = Int8Linear.from_weight(torch.randn(32, 64)), torch.randn(5, 64)
    rows[2] *= 1e4
    together = linear(rows)
    for row in range(5):
        assert torch.equal(together[row], linear(rows[row : row + 1])[0])


def test_sibling_projections_share_one_product(tmp_path: Path) -> None:
    model = own_model(write_tiny_model(tmp_path))
    pack_linear_layers(model, Int8Linear.from_weight)
    layer = model.model.layers[0]  # type: ignore[union-attr,index]
    assert isinstance(layer.self_attn.q_proj.all_columns, Int8Linear)  # type: ignore[union-attr]
    assert isinstance(layer.mlp.down_proj, Int8Linear)  # type: ignore[union-attr]


def test_int8_is_refused_where_it_would_be_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "is_int8_supported", lambda: False)
    with pytest.raises(ModelLoadError, match="choose fp16_packed or auto"):
        load_model(write_tiny_model(tmp_path), "int8_packed")


def test_a_model_in_int8_loads_and_keeps_its_head_in_int8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "is_int8_supported", lambda: True)  # elsewhere it is slow, not wrong
    loaded = load_model(write_tiny_model(tmp_path), "int8_packed")
    loaded.replace_head(torch.randn(loaded.vocab_size, loaded.hidden_size))
    assert isinstance(loaded.model.get_output_embeddings(), Int8Linear)  # type: ignore[operator]
