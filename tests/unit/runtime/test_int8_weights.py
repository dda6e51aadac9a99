"""Weights in int8 rows: how far off they may be, how they are loaded, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from specgrove.errors import ModelLoadError
from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.int8_linear import is_int8_supported
from specgrove.runtime.int8_weights import (
    FILE_NAME,
    QUANTIZATION_CONFIG,
    dequantize_rows,
    dequantized,
    quantize_rows,
    read_int8_state,
)
from specgrove.runtime.loading import load_model
from specgrove.runtime.packed_linear import is_packing_supported
from support.tiny_models import write_tiny_model

PROMPT = [5, 6, 7, 8]


@given(st.integers(0, 10**6), st.floats(1e-9, 1e4), st.sampled_from([(3, 5), (2, 3, 4), (1, 1), (4, 0 + 7)]))
def test_no_value_is_off_by_more_than_half_a_step(seed: int, size: float, shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * size
    steps, scale = quantize_rows(weight)
    assert (steps.dtype, scale.dtype, scale.shape) == (torch.int8, torch.float16, weight.shape[:-1])
    error = (dequantize_rows(steps, scale) - weight).abs()
    assert bool((error <= 0.5001 * scale.float().unsqueeze(-1)).all())


def test_a_row_of_zeros_comes_back() -> None:
    assert not dequantize_rows(*quantize_rows(torch.zeros(2, 3))).any()


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e8])
def test_numbers_without_a_scale_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite or too large"):
        quantize_rows(torch.tensor([[1.0, value]]))


def quantise_folder(folder: Path) -> None:
    """Rewrite a folder the way a tuned SSM is written."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / FILE_NAME).items():
        if tensor.ndim == 2:
            state[name], state[name + "_scale"] = quantize_rows(tensor)
        else:
            state[name] = tensor.half()
    save_file(state, folder / FILE_NAME, metadata={"format": "pt"})
    edit_config(folder, quantization_config=QUANTIZATION_CONFIG)


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def logits(folder: Path, weights: str) -> torch.Tensor:
    loaded = load_model(folder, weights)
    cache = loaded.new_cache(max_tokens=16)
    rows = SequenceRows(cache.new_sequence(), PROMPT, range(4), range(-1, 3), [True] * 4)
    return PackedForward(loaded, cache).run([rows])


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("weights", ["float32", "fp16_packed"])
def test_an_int8_folder_says_what_its_weights_say(weights: str, is_tied: bool, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "int8", tie_word_embeddings=is_tied)
    quantise_folder(folder)
    # The same numbers as an ordinary float32 folder.
    plain = write_tiny_model(tmp_path / "plain", tie_word_embeddings=is_tied)
    save_file(read_int8_state(folder), plain / FILE_NAME, metadata={"format": "pt"})

    ours = logits(folder, weights)

    torch.testing.assert_close(ours, logits(plain, weights), atol=1e-5, rtol=1e-5)
    original = logits(write_tiny_model(tmp_path / "original", tie_word_embeddings=is_tied), weights)
    assert 1e-6 < float((ours - original).abs().max()) < 0.1 * float(original.abs().max())


def test_by_default_an_int8_folder_is_multiplied_as_it_is(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    quantise_folder(folder)
    fallback = "fp16_packed" if is_packing_supported() else "float32"
    assert load_model(folder).weights == ("int8_packed" if is_int8_supported() else fallback)
    exact = logits(folder, "float32")
    torch.testing.assert_close(logits(folder, "auto"), exact, atol=2e-3 * float(exact.abs().max()), rtol=0)


def _without(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        state = load_file(folder / FILE_NAME)
        del state[name]
        save_file(state, folder / FILE_NAME, metadata={"format": "pt"})

    return damage


def _cut_off(folder: Path) -> None:
    path = folder / FILE_NAME
    path.write_bytes(path.read_bytes()[:500])


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a scale is missing": (_without("lm_head.weight_scale"), "lm_head.weight is int8 and needs a float tensor"),
    "a weight is missing": (_without("model.norm.weight"), "lacks 1 weights"),
    "the file is cut off": (_cut_off, "cannot load"),
    "the file is missing": (lambda folder: (folder / FILE_NAME).unlink(), "cannot load"),
    "the format is newer": (
        lambda folder: edit_config(folder, quantization_config={**QUANTIZATION_CONFIG, "format": "int4"}),
        "format 'int4' cannot be read",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_int8_folder_is_refused_with_the_reason(damage: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    quantise_folder(folder)
    apply, complaint = DAMAGES[damage]
    apply(folder)
    with pytest.raises(ModelLoadError, match=complaint):
        load_model(folder)


def test_a_scale_of_another_shape_is_refused() -> None:
    tensors = {"maps": torch.zeros(2, 3, 4, dtype=torch.int8), "maps_scale": torch.ones(2)}
    with pytest.raises(ModelLoadError, match=r"maps_scale of shape \[2, 3\]"):
        dequantized(tensors, "a file")


def test_a_tensor_that_only_sounds_like_a_scale_is_kept() -> None:
    tensors = {"logit": torch.ones(2), "logit_scale": torch.ones(2), "other_scale": torch.ones(2)}
    assert set(dequantized(tensors, "a file")) == set(tensors)
