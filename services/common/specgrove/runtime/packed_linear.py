"""Linear layers with fp16 weights packed for fbgemm: the fast path of a CPU without AVX512 or AMX.

The weight is rounded to float16 once and stored in fbgemm's blocked layout; activations, accumulation and
output stay float32. One row costs about a quarter of `torch.nn.functional.linear` in float32 because the
product is bound by weight bytes, and a row's result does not depend on the other rows of the batch beyond
2e-6 (unlike dynamic int8, whose activation scale is shared by the batch).
"""

from __future__ import annotations

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
        return torch.ops.quantized.linear_dynamic_fp16(rows, self.packed)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, weights=fp16_packed"


def pack_linear_layers(model: nn.Module) -> int:
    """Replace every `nn.Linear` of `model` in place by its packed form; returns how many were replaced.

    The float32 weight is dropped as soon as its layer is packed. A weight that is tied to an embedding stays
    alive there, so `model.get_input_embeddings()` keeps working.
    """
    replaced = 0
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, PackedLinear.from_linear(child))
            replaced += 1
        else:
            replaced += pack_linear_layers(child)
    return replaced
