"""The one feature vector a session has: the target's states at its last committed row, as bytes. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TargetFeatures:
    """What the target thought where it chose the last token of a base of `base_len` tokens.

    `values` are little-endian float16: one part for each layer that was asked for, then the final normalised states,
    each part scaled to a root mean square of 1 (`runtime.features`).
    """

    base_len: int
    values: bytes
