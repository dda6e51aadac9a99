"""Projections of one input are multiplied at once and stay what they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from specgrove.runtime.int8_linear import Int8Linear
from specgrove.runtime.packed_linear import PackedColumns, PackedLinear, PackWeight, pack_linear_layers


class _Attention(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj = nn.Linear(24, 40, bias=bias)
        self.k_proj = nn.Linear(24, 8, bias=bias)
        self.v_proj = nn.Linear(24, 8, bias=bias)
        self.o_proj = nn.Linear(40, 24, bias=bias)


def _separately_packed(attention: _Attention) -> dict[str, PackedLinear]:
    return {name: PackedLinear.from_linear(child) for name, child in attention.named_children()}


def test_shared_projections_equal_separate_ones_with_and_without_bias() -> None:
    for bias in (False, True):
        attention = _Attention(bias=bias)
        separate = _separately_packed(attention)
        assert pack_linear_layers(attention) == 4
        assert isinstance(attention.q_proj, PackedColumns)
        assert isinstance(attention.o_proj, PackedLinear)
        for rows in (torch.randn(1, 24), torch.randn(1, 7, 24)):
            for name in ("q_proj", "k_proj", "v_proj"):
                torch.testing.assert_close(getattr(attention, name)(rows), separate[name](rows), rtol=0, atol=1e-6)


def test_another_input_is_never_answered_with_the_last_product() -> None:
    attention = _Attention(bias=False)
    separate = _separately_packed(attention)
    pack_linear_layers(attention)
    first, second = torch.randn(3, 24), torch.randn(3, 24)
    attention.q_proj(first)
    torch.testing.assert_close(attention.v_proj(second), separate["v_proj"](second), rtol=0, atol=1e-6)
    torch.testing.assert_close(attention.k_proj(first), separate["k_proj"](first), rtol=0, atol=1e-6)


def test_projections_of_different_inputs_are_packed_apart() -> None:
    module = nn.Module()
    module.gate_proj = nn.Linear(8, 16)
    module.up_proj = nn.Linear(12, 16)
    assert pack_linear_layers(module) == 2
    assert isinstance(module.gate_proj, PackedLinear)
    assert isinstance(module.up_proj, PackedLinear)


@pytest.mark.parametrize("pack", [PackedLinear.from_weight, Int8Linear.from_weight])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_gives_its_columns_in_another_order_and_its_projections_theirs(pack: PackWeight, bias: bool) -> None:
    attention, rows = _Attention(bias=bias), torch.randn(1, 7, 24)
    pack_linear_layers(attention, pack)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    before = [projection(rows) for projection in projections]
    order = torch.randperm(56, generator=torch.Generator().manual_seed(3))
    for _ in range(2):  # asked for twice, done once
        attention.q_proj.reorder_all_columns(order)
        together = attention.q_proj.all_columns(rows)
        torch.testing.assert_close(together, torch.cat(before, dim=-1)[..., order], rtol=0, atol=1e-6)
        for projection, columns in zip(projections, before, strict=True):
            torch.testing.assert_close(projection(rows), columns, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="another order already"):
        attention.q_proj.reorder_all_columns(order.flip(0))
