"""Heads of tiny SSMs for the tests of the tuning command."""

from __future__ import annotations

import torch

from specgrove_drafter.tuning.depth_head import DepthHead

NUM_FEATURES = 3 * 32  # two inner layers and the final states of the tiny target


def randomise(head: DepthHead) -> None:
    """Fill a head's maps with noise, so that a mix-up shows."""
    with torch.no_grad():
        for name in ("token_map", "other", "state_maps", "feature_maps"):
            torch.nn.init.normal_(getattr(head, name), std=0.3)
