"""Features: what the target thinks of its last committed token, for speculators that want to know.

    features = [ unit_rms(states after layer a) | unit_rms(states after layer b) | unit_rms(final normalised states) ]

Layers count from 1; the final norm's output always comes last. Each part has a root mean square of 1, so that a linear
map of them means the same for every token.
"""

from __future__ import annotations

from torch import Tensor

_TINY = 1e-12


def unit_rms(states: Tensor) -> Tensor:
    """`states` [..., H] scaled so that the mean square of each row is 1, in float32."""
    wide = states.float()
    return wide * wide.square().mean(-1, keepdim=True).clamp(min=_TINY).rsqrt()


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """A third and two thirds of the way up: (10, 20) of 30 layers; fewer for a model with fewer than three."""
    return tuple(sorted({layer for layer in (num_layers // 3, 2 * num_layers // 3) if layer > 0}))
