"""A narrower SSM: the channels of the target's MLPs that move the most are kept, the others are left out.

    up, gate [I, H]  ──▶ I channels ──▶  down [H, I]        channel c adds  down[:, c] * act(gate[c] @ x) * (up[c] @ x)

A channel's strength is the product of the norms of its three vectors: what it can add to the states at most, up to the
activation. Distillation makes up for what is lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specgrove_drafter.tuning.errors import UnsupportedTargetError


def narrow_mlps(source: Mapping[str, Tensor], num_layers: int, width: int) -> dict[str, Tensor]:
    """The MLP weights of the first `num_layers` layers with `width` channels, by their names in the state dict.

    Raises UnsupportedTargetError for MLPs that are not made of gate_proj, up_proj and down_proj.
    """
    narrowed: dict[str, Tensor] = {}
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}.mlp."
        parts = {part: source.get(f"{prefix}{part}_proj.weight") for part in ("gate", "up", "down")}
        gate, up, down = (parts[part] for part in ("gate", "up", "down"))
        if gate is None or up is None or down is None:
            raise UnsupportedTargetError("--mlp-width needs MLPs of gate_proj, up_proj and down_proj; leave it out")
        kept = strongest_channels(gate, up, down, width)
        for part in ("gate", "up"):
            narrowed[f"{prefix}{part}_proj.weight"] = source[f"{prefix}{part}_proj.weight"][kept].float().cpu()
            bias = source.get(f"{prefix}{part}_proj.bias")
            if bias is not None:
                narrowed[f"{prefix}{part}_proj.bias"] = bias[kept].float().cpu()
        narrowed[f"{prefix}down_proj.weight"] = down[:, kept].float().cpu()
    return narrowed


def strongest_channels(gate: Tensor, up: Tensor, down: Tensor, width: int) -> Tensor:
    """int64 [width], ascending: of `gate`, `up` [I, H] and `down` [H, I] the channels with the largest norms."""
    strength = gate.float().norm(dim=1) * up.float().norm(dim=1) * down.float().norm(dim=0)
    return torch.topk(strength, min(width, len(strength))).indices.sort().values
