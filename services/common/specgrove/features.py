"""The one feature vector a session has: the target's states at its last committed row, as bytes. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

# An 8B model with three layers makes 24 KB; nothing larger is sent, and nothing larger is asked for.
MAX_FEATURE_BYTES = 256 * 1024
_BYTES_PER_VALUE = 2


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """What a feature vector consists of: `hidden_size` numbers for each layer, then as many for the final states.

    Without layers it is empty: nothing is asked for.
    """

    layers: tuple[int, ...] = ()  # inner layers of the target, counted from 1
    hidden_size: int = 0  # of the target

    @property
    def num_parts(self) -> int:
        return len(self.layers) + 1 if self.layers else 0

    @property
    def num_bytes(self) -> int:
        return self.num_parts * self.hidden_size * _BYTES_PER_VALUE


NO_FEATURES = FeatureLayout()


@dataclass(frozen=True, slots=True)
class TargetFeatures:
    """What the target thought where it chose the last token of a base of `base_len` tokens.

    `values` are little-endian float16: one part for each layer that was asked for, then the final normalised states,
    each part scaled to a root mean square of 1 (`runtime.features`).
    """

    base_len: int
    values: bytes
