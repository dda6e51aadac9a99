"""The matrix products of a written-out layer: projections of one input at once, models of one shape side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from specgrove.runtime.int8_linear import Int8Linear
from specgrove.runtime.lean_step import HeadLayout
from specgrove.runtime.packed_linear import PackedColumns, PackedLinear

Product = Callable[[torch.Tensor], torch.Tensor]  # [K, N, in] -> [K, N, out]


def paired_order(heads: HeadLayout) -> torch.Tensor:  # int64 [(H + 2 H_kv) * D]
    """Columns of queries and keys so that the two channels of each rotation are neighbours; values as they are.

    A row of columns is then complex numbers as it lies in memory.
    """
    columns = torch.arange(heads.num_columns * heads.head_dim).view(heads.num_columns, 2, -1)
    turned, values = columns[: heads.num_turned], columns[heads.num_turned :]
    return torch.cat([turned.transpose(1, 2).flatten(), values.flatten()])


def pair_channels(attention: Any, order: torch.Tensor) -> bool:
    """Bring the query, key and value product of a packed `attention` into `order`; False where it is not packed."""
    if not isinstance(attention.q_proj, PackedColumns):
        return False
    attention.q_proj.reorder_all_columns(order)
    return True


def joint(products: Sequence[nn.Module]) -> Product:
    """K products as one."""
    # Frozen modules without hooks: nothing is lost by going past them.
    bare = [
        product.bare() if isinstance(product, PackedLinear | Int8Linear) else product.forward for product in products
    ]
    if len(bare) == 1:
        return bare[0]
    linears = [product for product in products if isinstance(product, nn.Linear)]
    if len(linears) == len(products):
        weights = torch.stack([linear.weight.detach().T for linear in linears])  # [K, in, out]
        biases: list[torch.Tensor] = [linear.bias.detach() for linear in linears if linear.bias is not None]
        if not biases:
            return lambda rows: torch.bmm(rows, weights)
        bias = torch.stack(biases)[:, None]
        return lambda rows: torch.baddbmm(bias, rows, weights)
    return lambda rows: torch.stack([product(part) for product, part in zip(bare, rows, strict=True)])


def side_by_side(projections: Sequence[Any]) -> nn.Module:
    """One product in place of several with the same input; their weights become views of its weight."""
    if isinstance(projections[0], PackedColumns):
        return projections[0].all_columns
    weights = [projection.weight for projection in projections]
    biases = [projection.bias for projection in projections]
    together = nn.Linear(1, 1, bias=biases[0] is not None, device="meta")
    together.weight = nn.Parameter(torch.cat([weight.detach() for weight in weights]), requires_grad=False)
    for projection, part in zip(projections, together.weight.split([len(w) for w in weights]), strict=True):
        projection.weight = nn.Parameter(part, requires_grad=False)
    if biases[0] is not None:
        together.bias = nn.Parameter(torch.cat([bias.detach() for bias in biases]), requires_grad=False)
    together.out_features, together.in_features = together.weight.shape
    return together
