"""What can be loaded is exact; what would not be is refused at load time, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from specgrove.errors import ModelLoadError
from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.loading import Weights, load_model
from support.tiny_models import CONFIGS, VOCAB_SIZE, own_logits, own_model, save_random_model, write_tiny_model

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_what_the_services_must_know_is_read_from_the_folder(architecture: str, tmp_path: Path) -> None:
    loaded = load_model(write_tiny_model(tmp_path, architecture), "float32")
    assert loaded.vocab_size == VOCAB_SIZE
    assert loaded.max_context_len == 256
    assert loaded.kv_shape.num_layers == 2
    assert loaded.weights == "float32"
    assert loaded.draft_vocab is None
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_auto_packs_the_weights_on_a_cpu_that_can(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    is_packing = "fbgemm" in torch.backends.quantized.supported_engines
    assert load_model(folder, Weights.AUTO).weights == ("fp16_packed" if is_packing else "float32")


def test_a_half_precision_checkpoint_runs_in_float32(tmp_path: Path) -> None:
    model = own_model(write_tiny_model(tmp_path / "full")).half()
    model.save_pretrained(tmp_path / "half")
    loaded = load_model(tmp_path / "half", "float32")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_tied_embeddings_survive_packing(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, tie_word_embeddings=True)
    loaded = load_model(folder, "fp16_packed")
    cache = loaded.new_cache(max_tokens=16)
    rows = SequenceRows(cache.new_sequence(), [5, 6, 7], range(3), range(-1, 2), [True] * 3)
    ours = PackedForward(loaded, cache).run([rows])
    assert (ours - own_logits(own_model(folder), [5, 6, 7])).abs().max() < 0.05


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="nowhere"):
        load_model(tmp_path / "nowhere")


def test_a_missing_gguf_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no GGUF file at .*model\.gguf"):
        load_model(tmp_path / "model.gguf")


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="not a model folder"):
        load_model(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (write_tiny_model(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="cannot load"):
        load_model(tmp_path)


def test_cut_off_weights_are_refused(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ModelLoadError, match="cannot load"):
        load_model(tmp_path)


def test_a_broken_config_is_refused(tmp_path: Path) -> None:
    (write_tiny_model(tmp_path) / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="not a model folder"):
        load_model(tmp_path)


def test_a_trimmed_vocabulary_needs_to_know_its_target(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, draft_vocab_other_id=95)
    save_file({"d2t": torch.arange(96)}, folder / "draft_vocab.safetensors")
    with pytest.raises(ModelLoadError, match="trimmed vocabulary"):
        load_model(folder)
    draft_vocab = load_model(folder, target_vocab_size=300).draft_vocab
    assert draft_vocab is not None
    assert draft_vocab.other_id == 95
    assert draft_vocab.to_target[:4].tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("name", "make_config"),
    [
        # Keys and values are all that is kept between forwards; a layer with any other state would forget it.
        (
            "short convolutions",
            lambda: transformers.Lfm2Config(
                **COMMON,
                intermediate_size=64,
                num_key_value_heads=2,
                layer_types=["conv", "full_attention"],
                block_multiple_of=8,
            ),
        ),
        (
            "linear attention",
            lambda: transformers.Qwen3NextConfig(
                **COMMON,
                intermediate_size=64,
                num_key_value_heads=2,
                head_dim=8,
                linear_num_value_heads=4,
                linear_num_key_heads=2,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
                layer_types=["linear_attention", "full_attention"],
                num_experts=0,
                mlp_only_layers=[0, 1],
            ),
        ),
        ("a state space", lambda: transformers.MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2)),
        # These fit a cache, but not this attention.
        ("linear biases", lambda: transformers.BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4)),
        (
            "chunked attention",
            lambda: transformers.Llama4TextConfig(
                **COMMON,
                intermediate_size=64,
                intermediate_size_mlp=64,
                num_key_value_heads=2,
                head_dim=8,
                attention_chunk_size=64,
                num_local_experts=2,
                layer_types=["chunked_attention", "full_attention"],
                no_rope_layers=[1, 0],
            ),
        ),
        (
            "attention sinks",
            lambda: transformers.GptOssConfig(
                **COMMON,
                intermediate_size=32,
                num_key_value_heads=2,
                head_dim=8,
                num_local_experts=2,
                num_experts_per_tok=1,
            ),
        ),
        ("no causal mask", lambda: transformers.BertConfig(**COMMON, intermediate_size=64, is_decoder=False)),
        (
            "attention of its own",
            lambda: transformers.GPTNeoConfig(
                vocab_size=96,
                hidden_size=32,
                num_layers=2,
                num_heads=4,
                max_position_embeddings=256,
                attention_types=[[["global", "local"], 1]],
                window_size=4,
                intermediate_size=64,
            ),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of `transformers`, about fast paths that are not installed
def test_an_architecture_that_would_not_be_exact_is_refused(
    name: str, make_config: Callable[[], Any], tmp_path: Path
) -> None:
    save_random_model(make_config(), tmp_path)
    with pytest.raises(ModelLoadError):
        load_model(tmp_path, "float32")


def test_the_context_ends_where_the_rotation_would_depend_on_the_longest_neighbour(tmp_path: Path) -> None:
    """Long-context rotations (longrope) switch for the whole batch once one row is past the original length."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "long_factor": [2.0] * 4,
        "short_factor": [1.0] * 4,
        "original_max_position_embeddings": 64,
    }
    config = transformers.Phi3Config(
        **COMMON,
        intermediate_size=64,
        num_key_value_heads=2,
        original_max_position_embeddings=64,
        rope_parameters=rope,
    )
    save_random_model(config, tmp_path)
    assert load_model(tmp_path, "float32").max_context_len == 64


def test_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    removed = next(name for name in weights if name.endswith("down_proj.weight"))
    del weights[removed]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelLoadError, match="lacks 1 weights"):
        load_model(folder)
