"""Feature maps made at random, written beside a tiny SSM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_feature_maps(
    folder: Path,
    layers: Sequence[int] = (1, 3),
    *,
    num_depths: int = 3,
    target_hidden_size: int = 32,
    hidden_size: int = 32,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Make the SSM in `folder` feature-fed; returns the maps. They differ so much by depth that a mix-up shows."""
    generator = torch.Generator().manual_seed(seed)
    num_features = (len(layers) + 1) * target_hidden_size
    maps = {
        "state_maps": torch.randn(num_depths, hidden_size, hidden_size, generator=generator) * 0.2,
        "feature_maps": torch.randn(num_depths, num_features, hidden_size, generator=generator) * 0.2,
    }
    save_file(maps, folder / "feature_maps.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"target_feature_layers": list(layers), "target_hidden_size": target_hidden_size}
    (folder / "config.json").write_text(json.dumps(config))
    return maps
