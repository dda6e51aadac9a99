"""A Llama with random weights as the runtime holds one, without a folder: for checks and timings of whole steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig

from specgrove.runtime.kv_cache import KVShape
from specgrove.runtime.lean_decoder import LeanDecoder
from specgrove.runtime.loading import LoadedModel
from specgrove.runtime.paged_rows import PagedAttention
from specgrove.runtime.step_graphs import Capture, CudaCapture, Recorded
from specgrove_kernels.backend import KernelSet


class NothingRecorded:
    """For devices that record nothing: steps are padded to their buckets and run eagerly."""

    def __call__(self, work: object) -> Recorded:
        raise RuntimeError("this device records no steps")


def runtime_llama(model: nn.Module, config: LlamaConfig) -> LoadedModel:
    """`model` under the lean decoder, attending by the reference."""
    decoder = LeanDecoder.of([model])
    if decoder is None:
        raise ValueError("the config is not Llama-shaped")
    weight = next(model.parameters())
    num_kv_heads = config.num_key_value_heads or config.num_attention_heads
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    return LoadedModel(
        model=model,
        decoder=decoder,
        source="random weights",
        weights=str(weight.dtype).removeprefix("torch."),
        vocab_size=config.vocab_size,
        max_context_len=config.max_position_embeddings,
        kv_shape=KVShape(config.num_hidden_layers, num_kv_heads, head_dim, weight.dtype),
        hidden_size=config.hidden_size,
        device=weight.device,
        has_windows=False,
    )


def on_kernels(loaded: LoadedModel, kernels: KernelSet, *, is_padded: bool) -> LoadedModel:
    """`loaded` attending by `kernels`; `is_padded` runs decode steps in buckets, replayed where the device records."""
    config: Any = loaded.model.config
    capture = partial(_capture_for, loaded.device) if is_padded else None
    group = config.num_attention_heads // loaded.kv_shape.num_kv_heads
    return replace(loaded, paged=PagedAttention(kernels, group, capture))


def _capture_for(device: torch.device) -> Capture:
    return CudaCapture(device) if device.type == "cuda" else NothingRecorded()
