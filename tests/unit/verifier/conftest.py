"""One tiny target for all engine tests, and one torch thread: the models here are far too small to share out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgrove.runtime.loading import LoadedModel, load_model
from support.tiny_models import own_model, write_tiny_model


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
    own: Any = own_model(tiny_folder)

    def generate(prompt: list[int], max_tokens: int, **settings: Any) -> list[int]:
        ids = torch.tensor([prompt])
        output = own.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
            **{"eos_token_id": None, **settings},
        )
        return output[0, len(prompt) :].tolist()

    return generate
