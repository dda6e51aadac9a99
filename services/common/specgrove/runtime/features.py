"""Features: what the target thinks of its last committed token, for speculators that want to know.

    features = [ unit_rms(states after layer a) | unit_rms(states after layer b) | unit_rms(final normalised states) ]

Layers count from 1; the final norm's output always comes last. Each part has a root mean square of 1, so that a linear
map of them means the same for every token. On the wire they are little-endian float16.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_TINY = 1e-12
_WIRE_TYPE = "<f2"


def unit_rms(states: Tensor) -> Tensor:
    """`states` [..., H] scaled so that the mean square of each row is 1, in float32."""
    wide = states.float()
    return wide * wide.square().mean(-1, keepdim=True).clamp(min=_TINY).rsqrt()


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """A third and two thirds of the way up: (10, 20) of 30 layers; fewer for a model with fewer than three."""
    return tuple(sorted({layer for layer in (num_layers // 3, 2 * num_layers // 3) if layer > 0}))


def encode_parts(states: Tensor) -> np.ndarray:  # float [..., H] -> little-endian float16 [..., H]
    """States of any layers as they travel: each row scaled to a root mean square of 1; `tobytes` of a slice is sent."""
    return unit_rms(states).half().cpu().numpy().astype(_WIRE_TYPE, copy=False)


def decode_parts(values: bytes, hidden_size: int) -> Tensor | None:  # float32 [P, hidden_size]
    """The parts in `values`, or None when these are not whole parts of finite numbers."""
    if not values or len(values) % (hidden_size * np.dtype(_WIRE_TYPE).itemsize):
        return None
    numbers = np.frombuffer(values, dtype=_WIRE_TYPE).astype(np.float32)
    if not np.isfinite(numbers).all():
        return None
    return torch.from_numpy(numbers).view(-1, hidden_size)
