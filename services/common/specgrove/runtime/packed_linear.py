"""Linear layers with fp16 weights packed for fbgemm: the fast path of a CPU without AVX512 or AMX.

The weight is rounded to float16 once and stored in fbgemm's blocked layout; activations, accumulation and
output stay float32. One row costs about a quarter of `torch.nn.functional.linear` in float32 because the
product is bound by weight bytes, and a row's result does not depend on the other rows of the batch beyond
2e-6 (unlike dynamic int8, whose activation scale is shared by the batch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

FLOAT16_MAX = 65504.0


def is_packing_supported() -> bool:
    """Whether this build of torch carries the fbgemm fp16 kernels (x86 builds do)."""
    return torch.backends.quantized.engine == "fbgemm" or "fbgemm" in torch.backends.quantized.supported_engines


class PackedLinear(nn.Module):
    """A drop-in for a frozen `nn.Linear`: float32 [..., in] -> float32 [..., out], weights in packed fp16."""

    def __init__(self, packed: torch.ScriptObject, in_features: int, out_features: int) -> None:
        super().__init__()
        self.packed = packed
        self.in_features = in_features
        self.out_features = out_features

    @classmethod
    def from_weight(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
        """Pack `weight` (float [out, in]) and `bias` (float [out] or None)."""
        out_features, in_features = weight.shape
        # fbgemm saturates silently; a weight outside the range of fp16 must not change unseen.
        rounded = weight.detach().float().clamp(-FLOAT16_MAX, FLOAT16_MAX).contiguous()
        frozen_bias = None if bias is None else bias.detach().float().contiguous()
        packed = torch.ops.quantized.linear_prepack_fp16(rounded, frozen_bias)
        return cls(packed, in_features, out_features)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> PackedLinear:
        return cls.from_weight(linear.weight, linear.bias)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized.linear_dynamic_fp16.default(rows, self.packed)

    def bare(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """`forward` with nothing to look up on the way."""
        operator, packed = torch.ops.quantized.linear_dynamic_fp16.default, self.packed
        return lambda rows: operator(rows, packed)

    def reordered(self, order: torch.Tensor) -> PackedLinear:
        """The same product with its columns in another `order` (int64 [out])."""
        weight, bias = torch.ops.quantized.linear_unpack_fp16(self.packed)
        return PackedLinear.from_weight(weight[order], None if bias is None else bias[order])

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, weights=fp16_packed"


PackWeight = Callable[[torch.Tensor, torch.Tensor | None], nn.Module]

# Projections that read the same input, by the names `transformers` gives them: packed side by side, multiplied at once.
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class _SharedProduct:
    """One packed product whose columns several projections share; made anew whenever another input comes."""

    def __init__(self, linears: Sequence[nn.Linear], pack: PackWeight) -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases: list[torch.Tensor] = [linear.bias for linear in linears if linear.bias is not None]
        self.linear = pack(weight, torch.cat(biases) if biases else None)
        self.order: torch.Tensor | None = None  # of the columns of `linear`; None as the projections have them
        self._widths = [linear.out_features for linear in linears]
        self._rows: torch.Tensor | None = None
        self._columns: Sequence[torch.Tensor] = ()

    def columns(self, rows: torch.Tensor, index: int) -> torch.Tensor:
        # The very tensor, not an equal one: nothing is compared, and nothing can be mistaken.
        if self._rows is not rows:
            self._rows = rows
            columns = self.linear(rows)
            if self.order is not None:
                columns = columns[..., self.order.argsort()]
            self._columns = columns.split(self._widths, dim=-1)
        return self._columns[index]

    def reorder(self, order: torch.Tensor) -> None:
        """Compute the columns in `order` (int64 [sum of out]); the projections still give theirs as they were."""
        if self.order is None:
            self.linear = self.linear.reordered(order)  # type: ignore[operator]
        elif not torch.equal(self.order, order):
            raise ValueError("these columns stand in another order already")
        self.order, self._rows = order, None


class PackedColumns(nn.Module):
    """One of several projections of the same input; the first one asked computes all of them."""

    def __init__(self, shared: _SharedProduct, index: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self._shared = shared
        self._index = index
        self.in_features = in_features
        self.out_features = out_features

    @property
    def all_columns(self) -> nn.Module:
        """The one product [..., in] -> [..., sum of out] that this projection is a part of."""
        return self._shared.linear

    def reorder_all_columns(self, order: torch.Tensor) -> None:
        """Let `all_columns` give its columns in `order` (int64 [sum of out]); this projection stays what it was."""
        self._shared.reorder(order)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self._shared.columns(rows, self._index)


def pack_linear_layers(model: nn.Module, pack: PackWeight = PackedLinear.from_weight) -> int:
    """Replace every `nn.Linear` of `model` in place by its packed form; returns how many were replaced.

    Query, key and value projections share one product, gate and up projections another: fewer, larger products. The
    float32 weight is dropped as soon as its layer is packed. A weight that is tied to an embedding stays alive there,
    so `model.get_input_embeddings()` keeps working.
    """
    replaced = 0
    for names in _SIBLINGS:
        replaced += _pack_siblings(model, names, pack)
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, pack(child.weight, child.bias))
            replaced += 1
        else:
            replaced += pack_linear_layers(child, pack)
    return replaced


def _pack_siblings(module: nn.Module, names: Sequence[str], pack: PackWeight) -> int:
    children = [getattr(module, name, None) for name in names]
    linears = [child for child in children if isinstance(child, nn.Linear)]
    has_bias = {linear.bias is not None for linear in linears}
    if len(linears) < len(names) or len({linear.in_features for linear in linears}) > 1 or len(has_bias) > 1:
        return 0
    shared = _SharedProduct(linears, pack)
    for index, (name, linear) in enumerate(zip(names, linears, strict=True)):
        setattr(module, name, PackedColumns(shared, index, linear.in_features, linear.out_features))
    return len(linears)
