"""Who gets the Triton kernels: nobody on a CPU unless interpreted, and what stands in the way is said."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, MistralConfig

from specgrove.errors import ModelLoadError
from specgrove.runtime import attention_choice
from specgrove.runtime.attention_choice import AttentionChoice, GraphChoice, choose_attention
from specgrove.runtime.loading import load_model
from specgrove_kernels.backend import has_triton, reference_kernels
from support.tiny_models import write_tiny_model

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LLAMA = LlamaConfig(num_attention_heads=8, num_key_value_heads=2)


@pytest.fixture
def triton_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with Triton, whose kernels cannot be had here."""
    monkeypatch.setattr(attention_choice, "has_triton", lambda: True)
    monkeypatch.setattr(attention_choice, "is_interpreted", lambda: False)
    monkeypatch.setattr(attention_choice, "triton_kernels", reference_kernels)


class WithSinks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(2))


def choose(
    choice: str, device: torch.device, config: object = LLAMA, model: nn.Module | None = None, graphs: str = "auto"
) -> object:
    return choose_attention(
        AttentionChoice(choice), GraphChoice(graphs), model or nn.Linear(1, 1), config, device, "a model"
    )


def test_a_cpu_gets_plain_torch() -> None:
    assert choose("auto", CPU) is None
    assert choose("reference", GPU) is None


@pytest.mark.usefixtures("triton_there")
def test_a_gpu_gets_the_kernels_and_recorded_steps() -> None:
    paged = choose("auto", GPU)
    assert isinstance(paged, attention_choice.PagedAttention)
    assert paged.heads_per_kv_head == 4
    assert paged.new_capture is not None


@pytest.mark.usefixtures("triton_there")
def test_recording_can_be_switched_off() -> None:
    paged = choose("auto", GPU, graphs="off")
    assert isinstance(paged, attention_choice.PagedAttention)
    assert paged.new_capture is None


@pytest.mark.usefixtures("triton_there")
@pytest.mark.parametrize(
    ("config", "model", "reason"),
    [
        (MistralConfig(sliding_window=5), None, "sliding windows"),
        (LlamaConfig(attn_logit_softcapping=30.0), None, "capped"),
        (LLAMA, WithSinks(), "sinks"),
    ],
)
def test_attention_of_other_kinds_runs_on_the_reference_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture, config: object, model: nn.Module | None, reason: str
) -> None:
    with caplog.at_level(logging.WARNING):
        assert choose("triton", GPU, config, model) is None
    assert reason in caplog.text


@pytest.mark.usefixtures("triton_there")
def test_a_rotation_that_looks_at_positions_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    config = LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with caplog.at_level(logging.WARNING):
        paged = choose("auto", GPU, config)
    assert isinstance(paged, attention_choice.PagedAttention)
    assert paged.new_capture is None
    assert "rope_type dynamic" in caplog.text


@pytest.mark.usefixtures("triton_there")
def test_triton_on_a_cpu_says_what_it_takes() -> None:
    with pytest.raises(ModelLoadError, match="TRITON_INTERPRET=1"):
        choose("triton", CPU)


def test_triton_without_triton_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice, "has_triton", lambda: False)
    with pytest.raises(ModelLoadError, match="pip install"):
        choose("triton", GPU)
    assert choose("auto", GPU) is None


def test_the_load_refuses_what_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice, "is_interpreted", lambda: False)
    folder = write_tiny_model(tmp_path, has_tokenizer=False)
    with pytest.raises(ModelLoadError, match="NVIDIA GPU" if has_triton() else "pip install"):
        load_model(folder, "float32", attention="triton")
    assert load_model(folder, "float32").paged is None
