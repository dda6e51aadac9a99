"""The files of a feature-fed SSM: read in every form they may have, refused with the reason in any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specgrove.errors import ModelLoadError
from specgrove.features import NO_FEATURES, FeatureLayout
from specgrove.runtime.int8_weights import quantize_rows
from specgrove_drafter.members.feature_maps import FILE_NAME, FeatureMaps, joint_layout, read_layout
from support.feature_maps import write_feature_maps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As much of an SSM as the maps need."""
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 16}))
    return tmp_path


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_maps(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / FILE_NAME)), folder / FILE_NAME)


def test_an_ssm_without_the_file_sees_tokens_only(folder: Path) -> None:
    assert FeatureMaps.load(folder) is None
    assert read_layout(folder) == NO_FEATURES


def _as_int8(maps: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in maps.items():
        stored[name], stored[f"{name}_scale"] = quantize_rows(tensor)
    return stored


@pytest.mark.parametrize(
    ("store", "tolerance"),
    [
        (lambda maps: maps, 0.0),
        (lambda maps: {name: tensor.half() for name, tensor in maps.items()}, 1e-3),
        (lambda maps: {name: tensor.bfloat16() for name, tensor in maps.items()}, 1e-2),
        (_as_int8, 1e-2),
    ],
)
def test_maps_of_any_type_are_read_as_float32(folder: Path, store: Any, tolerance: float) -> None:
    maps = write_feature_maps(folder, (2, 5), num_depths=4, target_hidden_size=24, hidden_size=16)
    edit_maps(folder, store)
    loaded = FeatureMaps.load(folder)
    assert loaded is not None
    assert loaded.layout == FeatureLayout((2, 5), 24)
    assert loaded.layout.num_bytes == 3 * 24 * 2
    assert loaded.max_distance == 4
    for name in ("state_maps", "feature_maps"):
        assert getattr(loaded, name).dtype == torch.float32
        torch.testing.assert_close(getattr(loaded, name), maps[name], atol=tolerance, rtol=0)


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no layers": (lambda folder: edit_config(folder, target_feature_layers=None), "must list target_feature_layers"),
    "an empty list": (lambda folder: edit_config(folder, target_feature_layers=[]), "must list target_feature_layers"),
    "layer 0": (lambda folder: edit_config(folder, target_feature_layers=[0, 2]), "counted from 1"),
    "no width": (lambda folder: edit_config(folder, target_hidden_size=None), "must name the target_hidden_size"),
    "another width": (
        lambda folder: edit_config(folder, target_hidden_size=8),
        r"needs feature_maps of shape \[depths, 24, 16\]",
    ),
    "no map": (
        lambda folder: edit_maps(folder, lambda maps: {"feature_maps": maps["feature_maps"]}),
        "needs state_maps .* holds nothing",
    ),
    "fewer depths": (
        lambda folder: edit_maps(folder, lambda maps: maps | {"state_maps": maps["state_maps"][:1]}),
        "same number of depths",
    ),
    "no depth": (
        lambda folder: edit_maps(folder, lambda maps: {name: tensor[:0] for name, tensor in maps.items()}),
        "needs state_maps",
    ),
    "int8 without scales": (
        lambda folder: edit_maps(folder, lambda maps: {name: tensor.to(torch.int8) for name, tensor in maps.items()}),
        "is int8 and needs a float tensor",
    ),
    "cut off": (lambda folder: (folder / FILE_NAME).write_bytes(b"\1\2\3") and None, "cannot load"),
    "a broken config": (lambda folder: (folder / "config.json").write_text("{") and None, "cannot read"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_maps_are_refused_with_the_reason(folder: Path, kind: str) -> None:
    write_feature_maps(folder, (2, 5), target_hidden_size=24, hidden_size=16)
    damage, complaint = BROKEN[kind]
    damage(folder)
    with pytest.raises(ModelLoadError, match=complaint):
        FeatureMaps.load(folder)


def test_a_drafter_asks_for_the_union_of_what_its_members_want() -> None:
    layouts = [FeatureLayout((20, 10), 64), NO_FEATURES, FeatureLayout((5, 10), 64)]
    assert joint_layout(layouts) == FeatureLayout((5, 10, 20), 64)
    assert joint_layout([NO_FEATURES]) == joint_layout([]) == NO_FEATURES


def test_members_of_different_targets_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="different target_hidden_size"):
        joint_layout([FeatureLayout((1,), 64), FeatureLayout((1,), 32)])


def test_more_features_than_a_message_may_hold_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="the limit is 262144"):
        joint_layout([FeatureLayout(tuple(range(1, 17)), 8192)])
