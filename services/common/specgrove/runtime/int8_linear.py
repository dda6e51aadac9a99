"""Linear layers with int8 weights and rows rounded to int8 on the way in: for SSMs on CPUs.

fbgemm rounds all activations of a call with one scale, so every row is brought to the same size first: else one row
with a large channel (the first token of a text has them) would leave its neighbours a handful of levels. Still a row's
result depends a little on the batch. A drafter may do that (its trees are only proposals), a verifier may not. On a
CPU with VNNI a product costs half of `PackedLinear`'s at one row and a quarter at twelve (README).
"""

from __future__ import annotations

import warnings

import torch
from torch import nn

from specgrove.runtime.int8_weights import quantize_rows


def is_int8_supported() -> bool:
    """Whether this CPU multiplies int8 fast (AVX512 VNNI) and this build of torch has fbgemm's kernels for it."""
    capabilities = torch.cpu.get_capabilities()
    return "fbgemm" in torch.backends.quantized.supported_engines and bool(capabilities.get("avx512_vnni", False))


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
        out_features, in_features = weight.shape
        steps, scale = quantize_rows(weight)
        with warnings.catch_warnings():
            # torch is about to move its quantised tensors elsewhere; only fbgemm's packing still asks for one.
            warnings.simplefilter("ignore", UserWarning)
            quantised = torch._make_per_channel_quantized_tensor(
                steps, scale.double().clamp_min(1e-12), torch.zeros(out_features, dtype=torch.int64), 0
            )
            packed = torch.ops.quantized.linear_prepack(quantised, None)
        return cls(packed, None if bias is None else bias.detach().float(), in_features, out_features)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        size = torch.linalg.vector_norm(rows, ord=float("inf"), dim=-1, keepdim=True).clamp_min_(1e-12)
        columns = torch.ops.quantized.linear_dynamic.default(rows / size, self.packed).mul_(size)
        return columns if self.bias is None else columns.add_(self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, weights=int8_packed"
