"""Every operation is tested in plain torch and, where Triton is installed, in Triton's interpreter on the CPU
(`tests/conftest.py` switches it on)."""

import pytest
import torch

from specgrove_kernels.backend import AttendPaged, KernelSet, has_triton, reference_kernels, triton_kernels

BACKENDS = ["torch", *(["triton"] if has_triton() else [])]


def pytest_report_header() -> str:
    return "kernels: " + ("torch and triton, interpreted" if has_triton() else "torch only: triton is not installed")


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """The models here are far too small to share out."""
    torch.set_num_threads(1)


@pytest.fixture(params=BACKENDS)
def kernels(request: pytest.FixtureRequest) -> KernelSet:
    return reference_kernels() if request.param == "torch" else triton_kernels()


@pytest.fixture
def attend(kernels: KernelSet) -> AttendPaged:
    return kernels.paged_tree_attention
