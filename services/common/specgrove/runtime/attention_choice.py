"""Which attention a model gets: the paged Triton kernels on NVIDIA GPUs, plain torch everywhere else."""

from __future__ import annotations

import logging
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import nn

from specgrove.errors import ModelLoadError
from specgrove.runtime.paged_rows import PagedAttention
from specgrove.runtime.step_graphs import CudaCapture
from specgrove_kernels.backend import has_triton, is_interpreted, triton_kernels

_log = logging.getLogger(__name__)
ROPE_BY_LENGTH = frozenset({"dynamic", "longrope"})  # they look at the positions' values, which a recording cannot


class AttentionChoice(StrEnum):
    """`triton` (paged kernels), `reference` (plain torch), or triton on CUDA devices where Triton is installed."""

    AUTO = "auto"
    REFERENCE = "reference"
    TRITON = "triton"


class GraphChoice(StrEnum):
    """Whether decode steps are recorded as CUDA graphs: where they can be, or never."""

    AUTO = "auto"
    OFF = "off"


def choose_attention(
    attention: AttentionChoice, graphs: GraphChoice, model: nn.Module, config: Any, device: torch.device, source: str
) -> PagedAttention | None:
    """How `model` attends through the paged kernels; None for the reference.

    A model whose attention the kernels' caller does not know runs on the reference, with a line in the log. Raises
    `ModelLoadError` where `triton` is asked for and cannot be had.
    """
    if not _wants_triton(attention, device):
        return None
    obstacle = _attention_obstacle(model, config)
    if obstacle is not None:
        _log.warning("%s runs with attention=reference: %s", source, obstacle)
        return None
    num_kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return PagedAttention(
        triton_kernels(),
        config.num_attention_heads // num_kv_heads,
        partial(CudaCapture, device) if _records(graphs, config, device, source) else None,
    )


def has_windows(config: Any) -> bool:
    """Whether a layer may see a sliding window only."""
    layer_types = getattr(config, "layer_types", None) or ()
    return getattr(config, "sliding_window", None) is not None or "sliding_attention" in layer_types


def _wants_triton(attention: AttentionChoice, device: torch.device) -> bool:
    if attention != AttentionChoice.TRITON:
        return attention == AttentionChoice.AUTO and device.type == "cuda" and has_triton()
    if not has_triton():
        raise ModelLoadError(
            "attention=triton needs Triton: pip install 'specgrove[gpu]', or choose attention=reference"
        )
    if device.type == "cuda" or (device.type == "cpu" and is_interpreted()):
        return True
    raise ModelLoadError(
        f"attention=triton needs an NVIDIA GPU and device={device} is none; choose attention=auto, or start the "
        "process with TRITON_INTERPRET=1 to run the kernels slowly on the CPU, for tests"
    )


def _attention_obstacle(model: nn.Module, config: Any) -> str | None:
    """What this model's attention does that the packed rows do not carry."""
    if has_windows(config):
        return "its layers see sliding windows"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "its attention scores are capped"
    if any(hasattr(module, "sinks") for module in model.modules()):
        return "its attention has sinks"
    return None


def _records(graphs: GraphChoice, config: Any, device: torch.device, source: str) -> bool:
    if graphs == GraphChoice.OFF or device.type != "cuda":
        return False
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope_type in ROPE_BY_LENGTH:
        _log.warning("%s runs without CUDA graphs: rope_type %s depends on the positions", source, rope_type)
        return False
    return True
