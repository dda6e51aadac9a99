"""One torch thread: the models here are far too small to share out."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    torch.set_num_threads(1)
