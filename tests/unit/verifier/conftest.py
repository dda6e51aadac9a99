"""One tiny target for all engine tests, and one torch thread: the models here are far too small to share out."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from specgrove.runtime.loading import LoadedModel, load_model
from support.tiny_models import own_greedy, own_model, write_tiny_model


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target"), "llama", seed=1)


@pytest.fixture(scope="session")
def target(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder, "float32")


@pytest.fixture(scope="session")
def greedy_truth(tiny_folder: Path) -> Callable[..., list[int]]:
    """`transformers` generate on the same weights, greedy: prompt -> output tokens."""
    return partial(own_greedy, own_model(tiny_folder))
