"""The verification rules: how a drafted path is accepted. Torch-free; for the algorithms see `verification`, `mss`."""

from __future__ import annotations

from enum import StrEnum


class Rule(StrEnum):
    """All three are lossless: the output follows the target's law whatever was drafted."""

    COUPLED = "coupled"  # shared noise: the same seed gives the same tokens, whatever was drafted (the default)
    MSS = "mss"  # SpecInfer's multi-step speculative sampling, algorithm 2 (VerifyStochastic)
    NAIVE = "naive"  # the target samples by itself, and a child that matches is taken (SpecInfer, section 4.3)


def needs_child_laws(rule: Rule, temperature: float) -> bool:
    """Whether a draft must carry the laws its children were drawn from. Greedy sessions walk greedily by any rule."""
    return rule is Rule.MSS and temperature > 0.0
