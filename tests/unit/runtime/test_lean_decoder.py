"""The written-out decoder: taken where it fits, equal to the model's own code, and several models in one run."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from specgrove.errors import ModelLoadError
from specgrove.runtime.decoder import ModuleDecoder
from specgrove.runtime.forward import PackedForward
from specgrove.runtime.lean_decoder import LeanDecoder
from specgrove.runtime.loading import LoadedModel, load_model, stack
from support.forward_cases import Case, Runner, assert_close, random_tokens, random_tree
from support.tiny_models import own_model, write_tiny_model

_WEIGHTS = ["float32", "fp16_packed"]


def runner_of(loaded: LoadedModel) -> Runner:
    return Case(None, loaded).runner()


@pytest.mark.parametrize(
    ("architecture", "decoder"),
    [("llama", LeanDecoder), ("qwen2", LeanDecoder), ("mistral", ModuleDecoder), ("gpt2", ModuleDecoder)],
)
def test_llama_shaped_models_without_windows_run_lean(tmp_path: Path, architecture: str, decoder: type) -> None:
    assert isinstance(load_model(write_tiny_model(tmp_path, architecture), "float32").decoder, decoder)


def test_a_mistral_without_a_window_runs_lean(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "mistral", sliding_window=None)
    assert isinstance(load_model(folder, "float32").decoder, LeanDecoder)


def test_lean_is_refused_by_name_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="not Llama-shaped; choose decoder=auto"):
        load_model(write_tiny_model(tmp_path, "gpt2"), "float32", decoder="lean")


@pytest.mark.parametrize("settings", [{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}, {}])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_prefill_chunks_trees_and_rows_beside_them_are_the_models_own(
    tmp_path: Path, architecture: str, settings: dict[str, object]
) -> None:
    folder = write_tiny_model(tmp_path, architecture, seed=3, **settings)
    case = Case(own_model(folder), load_model(folder, "float32", decoder="lean"))
    runner, random = case.runner(), Random(5)
    texts = [runner.prefilled(random_tokens(random, count)) for count in (0, 1, 9)]
    trees = [random_tree(random, count) for count in (0, 5, 11)]
    logits = runner.forward.run([runner.tree(*pair) for pair in zip(texts, trees, strict=True)])
    assert_close(logits, torch.cat([runner.expected(*pair) for pair in zip(texts, trees, strict=True)]))


@pytest.mark.parametrize("weights", _WEIGHTS)
def test_only_rows_that_are_asked_for_come_back_and_the_others_leave_their_keys(tmp_path: Path, weights: str) -> None:
    loaded = load_model(write_tiny_model(tmp_path), weights)
    whole, runner, tokens = runner_of(loaded), runner_of(loaded), random_tokens(Random(1), 7)
    text = whole.prefilled([])
    every = whole.forward.run([whole.chain(text, tokens)])
    text = runner.prefilled(tokens[:6])
    assert_close(runner.forward.run([runner.chain(text, tokens[6:])]), every[6:])


@pytest.mark.parametrize("weights", _WEIGHTS)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])  # without and with biases
def test_a_stack_says_what_each_of_its_models_says(tmp_path: Path, architecture: str, weights: str) -> None:
    models = [
        load_model(write_tiny_model(tmp_path / str(seed), architecture, seed=seed), weights) for seed in (1, 2, 3)
    ]
    joint = stack(models)
    assert joint is not None
    assert joint.decoder.num_models == 3
    outputs = []
    for loaded in (joint, *models):
        random, runner = Random(7), runner_of(loaded)
        texts = [runner.prefilled(random_tokens(random, count)) for count in (4, 9)]
        first = random_tree(random, 6, depth_bias=1.0)
        runner.forward.run([runner.tree(texts[0], first)])
        runner.commit(texts[0], first.token_ids[:2], [0, 1])
        trees = [random_tree(random, count) for count in (3, 8)]
        outputs.append(runner.forward.run([runner.tree(*pair) for pair in zip(texts, trees, strict=True)]))
    assert_close(outputs[0], torch.cat(outputs[1:], dim=-1))


def test_models_of_different_shapes_do_not_stack(tmp_path: Path) -> None:
    first = load_model(write_tiny_model(tmp_path / "first"), "float32")
    for name, other in {
        "layers": {"num_hidden_layers": 3},
        "width": {"intermediate_size": 32},
        "vocabulary": {"vocab_size": 100},
        "norm": {"rms_norm_eps": 1e-3},
        "biases": {"attention_bias": True},
    }.items():
        assert stack([first, load_model(write_tiny_model(tmp_path / name, **other), "float32")]) is None
    assert stack([first, load_model(tmp_path / "first", "fp16_packed")]) is None
    assert stack([first, load_model(write_tiny_model(tmp_path / "gpt2", "gpt2"), "float32")]) is None


def test_states_of_a_stack_can_be_changed_model_by_model(tmp_path: Path) -> None:
    models = [load_model(write_tiny_model(tmp_path / str(seed), seed=seed), "float32") for seed in (1, 2)]
    joint = stack(models)
    assert joint is not None
    cache = joint.new_cache(max_tokens=64)
    forward, runner = PackedForward(joint, cache), runner_of(joint)
    rows = runner.chain(runner.prefilled([]), [5, 6, 7])
    rows = type(rows)(cache.new_sequence(), rows.token_ids, rows.positions, rows.parents, rows.wants_logits)

    def only_the_second(states: torch.Tensor) -> torch.Tensor:
        assert states.shape[:2] == (2, 3)
        return states * torch.tensor([0.0, 1.0])[:, None, None]

    before, after = forward.run([rows]), None
    cache.rollback(rows.seq)
    after = forward.run([rows], only_the_second)
    vocab_size = models[0].vocab_size
    assert not after[:, :vocab_size].any()
    assert_close(after[:, vocab_size:], before[:, vocab_size:])
