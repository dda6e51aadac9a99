"""The one door to `transformers` here: reading targets, building SSMs, saving folders, plugging in an attention."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers

from specgrove.runtime.packed_linear import is_packing_supported, pack_linear_layers
from specgrove_drafter.tuning.errors import UnsupportedTargetError


class Tokenizer(Protocol):
    """What this command asks of a tokenizer."""

    @property
    def chat_template(self) -> str | None: ...

    @property
    def bos_token_id(self) -> int | None: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> str: ...


@dataclass(frozen=True, slots=True)
class Target:
    """A target folder, opened: its configuration, the token that ends a turn, and a fingerprint for resuming."""

    folder: str
    config: Any
    tokenizer: Tokenizer
    end_id: int
    fingerprint: str


def open_target(folder: str) -> Target:
    """Read configuration and tokenizer, no weights; raises UnsupportedTargetError when it cannot be shrunk."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedTargetError(f"cannot open the target {folder!r}: {error}") from error
    _check_architecture(folder, config)
    end_id = tokenizer.eos_token_id
    if end_id is None:
        raise UnsupportedTargetError(f"the tokenizer of {folder!r} names no end-of-text token")
    described = config.to_json_string() + str(tokenizer.chat_template)
    return Target(folder, config, tokenizer, end_id, hashlib.sha256(described.encode()).hexdigest()[:16])


def load_target_model(target: Target, device: torch.device, *, pack: bool, in_bulk: bool = False) -> Any:
    """The frozen target, ready to run.

    bfloat16 on a GPU and, `in_bulk` (many rows a step), on a CPU with bfloat16 tiles; else packed fp16 layers on a CPU
    that has them; else float32.
    """
    use_bfloat16 = device.type == "cuda" or (in_bulk and has_fast_bfloat16(device))
    dtype = torch.bfloat16 if use_bfloat16 else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(target.folder, dtype=dtype)
    model.requires_grad_(False).eval().to(device)
    if pack and device.type == "cpu" and not use_bfloat16 and is_packing_supported():
        pack_linear_layers(model)
    return model


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether large bfloat16 products are much faster there: on GPUs, and on CPUs with hardware tiles (AMX), where
    they run at five times float32's speed."""
    return device.type == "cuda" or bool(torch.cpu._is_amx_tile_supported())


def build_small(
    target_config: Any, *, num_layers: int, vocab_size: int, token_ids: dict[str, int | None], extra: dict[str, Any]
) -> Any:
    """An untied float32 model of the target's architecture with `num_layers` layers and its own small vocabulary."""
    settings = target_config.to_dict()
    for stale in ("architectures", "_name_or_path", "_model_name_or_path", "dtype", "torch_dtype", "unk_token_id"):
        settings.pop(stale, None)
    # What a config lists layer by layer (kinds of attention, say) is cut to the layers that are left.
    for name, value in settings.items():
        if isinstance(value, list) and len(value) == target_config.num_hidden_layers:
            settings[name] = value[:num_layers]
    settings.update(
        num_hidden_layers=num_layers, vocab_size=vocab_size, tie_word_embeddings=False, **token_ids, **extra
    )
    config = type(target_config)(**settings)
    config.dtype = torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    config.architectures = [type(model).__name__]
    return model


_PARTS = ("model.embed_tokens", "model.layers", "model.norm", "lm_head")


def _check_architecture(folder: str, config: Any) -> None:
    """Raises UnsupportedTargetError unless the model has its parts where this command looks for them."""
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError) as error:
        raise UnsupportedTargetError(f"the target {folder!r} is no decoder-only language model: {error}") from error
    present = {name for name, _ in model.named_modules()}
    missing = [part for part in _PARTS if part not in present]
    if missing:
        raise UnsupportedTargetError(
            f"the target {folder!r} is a {config.model_type!r} model without {', '.join(missing)}; only architectures "
            "with these names can be shrunk (Llama, Mistral, Qwen, Gemma, Phi and their kin)"
        )


def load_causal_lm(folder: Path) -> Any:
    """A folder as any user would load it, in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def register_attention(name: str, function: Callable[..., Any]) -> None:
    """Make `function` available to every model as the attention implementation `name`."""
    transformers.AttentionInterface.register(name, function)


def quiet_hub() -> None:
    """No progress bars of the loader between our own lines."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def cut_between(text: str, mark: str, pieces: int) -> Sequence[str]:
    """`text` cut at `mark`; raises UnsupportedTargetError unless that gives exactly `pieces`."""
    cut = text.split(mark)
    if len(cut) != pieces:
        raise UnsupportedTargetError("the target's chat template does not carry each turn's text exactly once")
    return cut
