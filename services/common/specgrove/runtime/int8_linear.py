"""Linear layers with int8 weights, for SSMs on CPUs: half the bytes of `PackedLinear`, and no less exact.

Activations go in as two int8 rows each, a coarse one and what it leaves, under one fixed scale, for every row is
brought to the same size first. So 15 of their bits count, a row's result does not depend on its neighbours, and the
weight is read once for both. What is rounded is the weight: to 8 bits with one scale a row, which weights that are
stored that way (`int8_weights.py`) are already.

    x = size * (coarse + fine / 254)        coarse, fine: multiples of 1/127 in [-1, 1]

Without VNNI fbgemm adds products of pairs in 16 bits, so activations have 7 bits each there: 1/63 in place of 1/127.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import nn

from specgrove.runtime.int8_weights import quantize_rows

if TYPE_CHECKING:
    from specgrove_kernels.cpu.int8_rows import Int8Rows

_HAS_VNNI = bool(torch.cpu.get_capabilities().get("avx512_vnni", False))
_STEPS = 127 if _HAS_VNNI else 63  # of an activation in [0, 1]
_ZERO = _STEPS + 1  # fbgemm multiplies unsigned activations with signed weights
_LEAST_SIZE = 1e-12


def is_int8_supported() -> bool:
    """Whether this CPU multiplies int8 fast (AVX512 VNNI) and this build of torch has fbgemm's kernels for it."""
    return _HAS_VNNI and "fbgemm" in torch.backends.quantized.supported_engines


class Int8Linear(nn.Module):
    """A drop-in for a frozen `nn.Linear`: float32 [..., in] -> float32 [..., out]."""

    def __init__(
        self, packed: torch.ScriptObject, bias: torch.Tensor | None, in_features: int, out_features: int
    ) -> None:
        super().__init__()
        self.packed = packed
        self.bias = bias
        self.in_features = in_features
        self.out_features = out_features

    @classmethod
    def from_weight(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Int8Linear:
        """Round and pack `weight` (float [out, in]); `bias` (float [out] or None) stays as it is."""
        return cls._from_steps(*quantize_rows(weight), None if bias is None else bias.detach().float())

    @classmethod
    def _from_steps(cls, steps: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> Int8Linear:
        out_features, in_features = steps.shape
        with warnings.catch_warnings():
            # torch is about to move its quantised tensors elsewhere; only fbgemm's packing still asks for one.
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch._make_per_channel_quantized_tensor(
                steps, scale.double().clamp_min(1e-12), torch.zeros(out_features, dtype=torch.int64), 0
            )
            packed = torch.ops.quantized.linear_prepack(quantised, None)
        return cls(packed, bias, in_features, out_features)

    def reordered(self, order: torch.Tensor) -> Int8Linear:
        """The same product with its columns in another `order` (int64 [out])."""
        steps, scale = self._steps()
        return self._from_steps(steps[order], scale[order], None if self.bias is None else self.bias[order])

    @cached_property
    def few_rows(self) -> Int8Rows:
        """The same matrix once more, as compiled functions read it (needs Numba)."""
        from specgrove_kernels.cpu.int8_rows import Int8Rows

        return Int8Rows.of(*self._steps(), self.bias)

    def _steps(self) -> tuple[torch.Tensor, torch.Tensor]:  # int8 [out, in], float64 [out]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            weight, _ = torch.ops.quantized.linear_unpack(self.packed)
            return weight.int_repr(), weight.q_per_channel_scales()

    def bare(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """`forward` with nothing to look up on the way."""
        return self.forward

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        size = torch.linalg.vector_norm(rows, ord=float("inf"), dim=-1, keepdim=True).clamp_min_(_LEAST_SIZE)
        scaled = rows / size
        coarse = (scaled * _STEPS).round_().mul_(1.0 / _STEPS)
        fine = scaled.sub_(coarse).mul_(2.0 * _STEPS)
        both = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(
            torch.stack([coarse, fine]), 1.0 / _STEPS, _ZERO, self.packed
        )
        columns = both[0].add_(both[1], alpha=0.5 / _STEPS).mul_(size)
        return columns if self.bias is None else columns.add_(self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, weights=int8_packed"
