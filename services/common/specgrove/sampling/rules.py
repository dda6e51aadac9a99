"""The verification rules: how a drafted path is accepted. Torch-free; the algorithms are in `verification` and `mss`."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """All three are lossless: the output follows the target's law whatever was drafted."""

    COUPLED = "coupled"  # shared noise: the same seed gives the same tokens, whatever was drafted (the default)
    MSS = "mss"  # SpecInfer's multi-step speculative sampling, algorithm 2 (VerifyStochastic)
    NAIVE = "naive"  # the target samples by itself, and a child that matches is taken (SpecInfer, section 4.3)
