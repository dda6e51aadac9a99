"""Seeded random models with a few thousand parameters, saved as Hugging Face folders: real architectures, no download.

Weights are drawn wide (standard deviation 0.3), so that the likeliest token leads by far more than the 1e-4 by which a
logit may move with the shape of the batch, and attention is far from uniform.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 96
MAX_CONTEXT_LEN = 256
EOS_ID = 2
FIRST_CHAR_ID = 3  # ids from here on are the printable ASCII characters in order
_FIRST_CHAR = "!"
_INIT_STD = 0.3

transformers.utils.logging.disable_progress_bar()


def _llama(**common: Any) -> Any:
    return transformers.LlamaConfig(**{"intermediate_size": 64, "num_key_value_heads": 2, **common})


def _qwen2(**common: Any) -> Any:
    return transformers.Qwen2Config(**{"intermediate_size": 64, "num_key_value_heads": 1, **common})


def _qwen3(**common: Any) -> Any:
    return transformers.Qwen3Config(intermediate_size=64, num_key_value_heads=2, head_dim=12, **common)


def _gemma2(**common: Any) -> Any:
    return transformers.Gemma2Config(
        intermediate_size=64,
        num_key_value_heads=2,
        head_dim=12,
        query_pre_attn_scalar=12,
        sliding_window=6,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
        **common,
    )


def _mistral(**common: Any) -> Any:
    return transformers.MistralConfig(
        **{"intermediate_size": 64, "num_key_value_heads": 2, "sliding_window": 5, **common}
    )


def _gpt2(**common: Any) -> Any:
    del common["tie_word_embeddings"]
    return transformers.GPT2Config(**common)


CONFIGS: dict[str, Callable[..., Any]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,  # alternating windows, both soft caps
    "mistral": _mistral,  # a sliding window in every layer
    "gpt2": _gpt2,  # learned positions, Conv1D
}


def write_tiny_model(
    folder: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    vocab_size: int = VOCAB_SIZE,
    max_context_len: int = MAX_CONTEXT_LEN,
    has_tokenizer: bool = True,
    **settings: Any,
) -> Path:
    """`folder`, now a model of `architecture`; equal arguments give equal weights. `settings` go to the config."""
    config = CONFIGS[architecture](
        **{
            "vocab_size": vocab_size,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": max_context_len,
            "initializer_range": _INIT_STD,
            "bos_token_id": 1,
            "eos_token_id": EOS_ID,
            "pad_token_id": 0,
            "tie_word_embeddings": False,
            **settings,
        }
    )
    save_random_model(config, folder, seed=seed)
    if has_tokenizer:
        write_char_tokenizer(folder, vocab_size)
    return folder


def save_random_model(config: Any, folder: Path, *, seed: int = 0) -> None:
    """A random model of any `transformers` config."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name or ".ln_" in name:
                    parameter.add_(0.1 * torch.randn_like(parameter))  # a norm that is all ones hides mistakes
    model.save_pretrained(folder)


def write_char_tokenizer(folder: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """One id for each printable character, after <pad>, <s> and </s>; ids past the last character have no text."""
    specials = ["<pad>", "<s>", "</s>"]
    num_chars = min(vocab_size - len(specials), 94)
    vocab = {token: token_id for token_id, token in enumerate(specials)}
    vocab |= {chr(ord(_FIRST_CHAR) + n): len(specials) + n for n in range(num_chars)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_ID}))


def text_of(token_ids: Sequence[int]) -> str:
    """What the characters of `token_ids` spell (specials have no text)."""
    return "".join(chr(ord(_FIRST_CHAR) + token_id - FIRST_CHAR_ID) for token_id in token_ids if token_id > EOS_ID)


def own_model(folder: Path) -> Any:
    """The model as `transformers` runs it, with its own eager attention, float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def own_logits(model: Any, token_ids: Sequence[int]) -> torch.Tensor:  # float32 [N, V]
    """Logits after each token of one sequence, by the model's own attention."""
    return model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()


def own_greedy(model: Any, prompt: Sequence[int], max_tokens: int, **settings: Any) -> list[int]:
    """The output tokens of the model's own `generate`, greedy. `settings` go to it; it does not stop at its own EOS."""
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=0,
        **{"eos_token_id": None, **settings},
    )
    return output[0, len(prompt) :].tolist()


@torch.inference_mode()
def own_features(model: Any, token_ids: Sequence[int], layers: Sequence[int]) -> torch.Tensor:  # float32 [P * H]
    """What the model itself makes of the features of a base of `token_ids`: its states at the last row but one, after
    `layers` and after the final norm, each part with a root mean square of 1."""
    output = model(input_ids=torch.tensor([list(token_ids)[:-1]]), use_cache=False, output_hidden_states=True)
    parts = [output.hidden_states[place][0, -1].float() for place in (*layers, -1)]
    return torch.cat([part / part.square().mean().sqrt() for part in parts])
