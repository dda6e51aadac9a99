"""The door to `transformers`: configs, causal language models and GGUF files come in here and nowhere else."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from torch import nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as hf_logging

from specgrove.errors import ModelLoadError
from specgrove.runtime.int8_weights import is_int8_config, read_int8_state

ATTENTION_NAME = "specgrove_tree"


def silence_progress_bars() -> None:
    """Keep `transformers` from drawing bars into a service's log."""
    hf_logging.disable_progress_bar()


def register_attention(function: Callable[..., tuple[torch.Tensor, None]]) -> None:
    """Make `function` the attention of every model loaded with `ATTENTION_NAME` (no mask is built for it)."""
    AttentionInterface.register(ATTENTION_NAME, function)


def fetch(hub_id: str) -> str:
    """The local folder of a model on the hub (from its cache when it is there already)."""
    try:
        return snapshot_download(hub_id, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.model"])
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ModelLoadError(f"{hub_id} is neither a folder here nor a model that can be fetched: {error}") from error


def read_config(source: str) -> Any:
    """The `transformers` config of a folder or hub id."""
    try:
        return AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ModelLoadError(
            f"{source} is not a model folder (config.json + safetensors), GGUF file or reachable hub id: {error}"
        ) from error


def load_causal_lm(source: str, *, dtype: torch.dtype | None, attention: str = ATTENTION_NAME) -> nn.Module:
    """A frozen causal language model in evaluation mode; `dtype` None keeps that of the checkpoint."""
    silence_progress_bars()
    result: Any
    try:
        result = _read(
            source,
            dtype=dtype if dtype is not None else "auto",
            attn_implementation=attention,
            output_loading_info=True,
        )
    except KeyError as error:
        raise ModelLoadError(
            f"cannot load {source}: its architecture has no place for our attention ({error})"
        ) from error
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelLoadError(f"cannot load {source} as a causal language model: {error}") from error
    model, report = result
    missing = sorted(report["missing_keys"])
    if missing:  # `transformers` fills them with random numbers
        raise ModelLoadError(f"{source} lacks {len(missing)} weights of its architecture, {missing[0]} among them")
    return model.eval().requires_grad_(False)


def _read(source: str, **settings: Any) -> Any:
    config = read_config(source)
    if not is_int8_config(getattr(config, "quantization_config", None)):
        return AutoModelForCausalLM.from_pretrained(source, **settings)
    del config.quantization_config  # `transformers` would look for a quantiser of that name
    with torch.device("meta"):
        architecture: Any = type(AutoModelForCausalLM.from_config(config))
    return architecture.from_pretrained(None, config=config, state_dict=read_int8_state(Path(source)), **settings)


def set_attention(model: nn.Module, attention: str) -> None:
    """Switch the attention of a loaded model by name (ours, or `eager` for the comparison at load time)."""
    model.set_attn_implementation(attention)  # type: ignore[operator]


def convert_gguf(gguf: Path, out: Path, report: Callable[[str], None]) -> None:
    """Write a GGUF file as a safetensors folder with tokenizer.json and chat template; about 30 s for 135M parameters.

    Weights are dequantised to float32: what the file says, not one bit less.
    """
    if not gguf.is_file():
        raise ModelLoadError(f"no GGUF file at {gguf}")
    report(f"reading {gguf.name}")
    try:
        quantised = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
        report("reading its tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelLoadError(f"cannot read {gguf}: {error}") from error
    # A model read from GGUF refuses to be saved; the same weights in a fresh model of the same shape do not.
    config = copy.deepcopy(quantised.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(quantised.state_dict())
    plain.tie_weights()
    plain.generation_config = quantised.generation_config
    report(f"writing {out}")
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)


def quiet(level: int = logging.ERROR) -> None:
    """Let only messages of `level` and above of `transformers` through."""
    hf_logging.set_verbosity(level)
