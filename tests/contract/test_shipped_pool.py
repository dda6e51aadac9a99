"""The SSMs that come with the repository: a pool, small, whole, and with the recipe to make it again."""

from __future__ import annotations

import json

from specgrove_local.models import shipped_ssms

MAX_POOL_BYTES = 40_000_000


def test_a_pool_of_at_least_two_ssms_under_forty_megabytes_is_shipped() -> None:
    folders = shipped_ssms()
    assert len(folders) >= 2
    size = sum(path.stat().st_size for folder in folders for path in folder.iterdir())
    assert size < MAX_POOL_BYTES


def test_every_shipped_ssm_is_feature_fed_and_carries_its_recipe() -> None:
    for folder in shipped_ssms():
        assert json.loads((folder / "config.json").read_text())["target_feature_layers"]
        assert (folder / "feature_maps.safetensors").is_file()
        card = (folder / "README.md").read_text()
        assert "specgrove-tune --target HuggingFaceTB/SmolLM2-135M-Instruct" in card
        assert "--seed 1" in card
