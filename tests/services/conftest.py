"""One torch thread, since the models here are far too small to share out; and what is started on real sockets."""

import pytest
import torch

from support.rpc_stand import start_server as start_server


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    torch.set_num_threads(1)
