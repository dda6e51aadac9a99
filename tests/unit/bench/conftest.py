"""The tiny pair that the paper tables are tested on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specgrove.runtime.loading import LoadedModel, load_model
from specgrove_bench.paper.speculator import SsmPool
from support.feature_maps import write_feature_maps
from support.paper_pair import write_noisy_copy
from support.tiny_models import write_tiny_model


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("paper") / "target", num_hidden_layers=4)


@pytest.fixture(scope="session")
def target(target_folder: Path) -> LoadedModel:
    return load_model(target_folder, "float32")


@pytest.fixture(scope="session")
def ssm_folders(target_folder: Path) -> tuple[Path, ...]:
    """Two SSMs that are wrong in different places."""
    return tuple(
        write_noisy_copy(target_folder, target_folder.parent / f"ssm-{seed}", noise=0.12, seed=seed) for seed in (1, 2)
    )


@pytest.fixture(scope="session")
def pool(ssm_folders: tuple[Path, ...], target: LoadedModel) -> SsmPool:
    return SsmPool.load(ssm_folders, target, max_cached_tokens=16384)


@pytest.fixture(scope="session")
def fed_pool(target_folder: Path, target: LoadedModel) -> SsmPool:
    """One SSM with maps for three depths."""
    folder = write_noisy_copy(target_folder, target_folder.parent / "ssm-fed", noise=0.05, seed=3)
    write_feature_maps(folder, num_depths=3)
    return SsmPool.load([folder], target, max_cached_tokens=16384)
