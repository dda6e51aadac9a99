"""The files that make an SSM feature-fed: one pair of maps for each draft depth.

Beside the ordinary Hugging Face files lies `feature_maps.safetensors` with `state_maps` [D, H, H] and `feature_maps`
[D, F, H], in any float type or as int8 rows with `state_maps_scale` [D, H] and `feature_maps_scale` [D, F]; config.json
names `target_feature_layers` (counted from 1) and `target_hidden_size`; F is (layers + 1) * target_hidden_size.

At draft depth d (1 = children of the root) the SSM's last states x and the target's features f become
x @ state_maps[d - 1] + f @ feature_maps[d - 1] on their way into the head. Two more tensors may be there: `token_map`
[H, H], through which states without features go (else they stay as they are), and `head_rows` [V, H], the head that all
maps lead into where it is not the model's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specgrove.errors import ModelLoadError
from specgrove.features import MAX_FEATURE_BYTES, NO_FEATURES, FeatureLayout
from specgrove.runtime.int8_weights import dequantized, read_tensors

FILE_NAME = "feature_maps.safetensors"
LAYERS_KEY = "target_feature_layers"
HIDDEN_SIZE_KEY = "target_hidden_size"


@dataclass(frozen=True, slots=True)
class FeatureMaps:
    """The maps of one SSM, and the features that they were made for."""

    layout: FeatureLayout
    state_maps: torch.Tensor  # float32 [D, H, H]
    feature_maps: torch.Tensor  # float32 [D, F, H]
    token_map: torch.Tensor | None = None  # float32 [H, H]
    head_rows: torch.Tensor | None = None  # float32 [V, H]

    @property
    def max_distance(self) -> int:
        """D: how many tokens ahead of the features' base a row's choice may stand."""
        return self.state_maps.shape[0]

    @classmethod
    def load(cls, folder: Path) -> FeatureMaps | None:
        """The maps in `folder`, or None for an SSM that sees tokens only. Raises `ModelLoadError`."""
        layout = read_layout(folder)
        if layout == NO_FEATURES:
            return None
        path = folder / FILE_NAME
        tensors = dequantized(read_tensors(path), str(path))
        hidden_size = _read_config(folder).get("hidden_size", 0)
        num_features = layout.num_parts * layout.hidden_size
        state_maps = _maps(tensors, "state_maps", (hidden_size, hidden_size), path)
        feature_maps = _maps(tensors, "feature_maps", (num_features, hidden_size), path)
        if state_maps.shape[0] != feature_maps.shape[0]:
            raise ModelLoadError(f"{path}: state_maps and feature_maps must be for the same number of depths")
        vocab_size = _read_config(folder).get("vocab_size", 0)
        token_map = _matrix(tensors, "token_map", (hidden_size, hidden_size), path)
        head_rows = _matrix(tensors, "head_rows", (vocab_size, hidden_size), path)
        return cls(layout, state_maps, feature_maps, token_map, head_rows)


def read_layout(folder: Path) -> FeatureLayout:
    """What the SSM in `folder` wants to know of its target; raises `ModelLoadError` where the config does not say."""
    if not (folder / FILE_NAME).is_file():
        return NO_FEATURES
    config = _read_config(folder)
    layers, hidden_size = config.get(LAYERS_KEY), config.get(HIDDEN_SIZE_KEY)
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, int) and layer > 0 for layer in layers):
        raise ModelLoadError(f"{folder} has {FILE_NAME}; its config.json must list {LAYERS_KEY}, counted from 1")
    if not isinstance(hidden_size, int) or hidden_size < 1:
        raise ModelLoadError(f"{folder} has {FILE_NAME}; its config.json must name the {HIDDEN_SIZE_KEY}")
    return FeatureLayout(tuple(layers), hidden_size)


def joint_layout(layouts: Sequence[FeatureLayout]) -> FeatureLayout:
    """What a drafter must ask for so that each of its members finds its own; raises `ModelLoadError` for members of
    different targets."""
    sizes = sorted({layout.hidden_size for layout in layouts if layout != NO_FEATURES})
    if not sizes:
        return NO_FEATURES
    if len(sizes) > 1:
        raise ModelLoadError(
            f"the SSMs were made for targets of different {HIDDEN_SIZE_KEY} ({', '.join(map(str, sizes))}); "
            "give a drafter SSMs of one target"
        )
    joint = FeatureLayout(tuple(sorted({layer for layout in layouts for layer in layout.layers})), sizes[0])
    if joint.num_bytes > MAX_FEATURE_BYTES:
        raise ModelLoadError(
            f"features of layers {joint.layers} take {joint.num_bytes} bytes a step, the limit is {MAX_FEATURE_BYTES}"
        )
    return joint


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {folder / 'config.json'}: {error}") from error
    return config if isinstance(config, dict) else {}


def _matrix(tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int, int], path: Path) -> torch.Tensor | None:
    matrix = tensors.get(name)
    if matrix is not None and tuple(matrix.shape) != shape:
        raise ModelLoadError(f"{path}: {name} must have shape {list(shape)}, not {list(matrix.shape)}")
    return None if matrix is None else matrix.float()


def _maps(tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int, int], path: Path) -> torch.Tensor:
    maps = tensors.get(name)
    if maps is None or maps.ndim != 3 or maps.shape[0] < 1 or tuple(maps.shape[1:]) != shape:
        found = "nothing" if maps is None else f"shape {list(maps.shape)}"
        raise ModelLoadError(f"{path} needs {name} of shape [depths, {shape[0]}, {shape[1]}] and holds {found}")
    return maps.float()
