"""The command as a user runs it: all problems at once, and a tiny target shrunk from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config

from specgrove.runtime.loading import load_model
from specgrove_drafter.tuning.__main__ import main
from specgrove_drafter.tuning.errors import SettingsError, UnsupportedTargetError
from specgrove_drafter.tuning.hub import load_causal_lm, open_target
from specgrove_drafter.tuning.settings import Boost, SsmShape, read_settings


def test_all_problems_come_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    arguments = ["--target", "t", "--out", str(tmp_path / "o"), "--work-dir", str(tmp_path), "--device", "abacus"]
    with pytest.raises(SettingsError) as raised:
        read_settings(
            [*arguments, "--layers", "0", "--tokens", "-1", "--prompts", "nowhere.txt", "--distil-steps", "-3"]
        )
    for flag in ("--device", "--layers", "--tokens", "--prompts", "--work-dir", "--distil-steps"):
        assert flag in str(raised.value)
    assert len(raised.value.problems) == 6


def test_two_budgets_are_refused(tmp_path: Path) -> None:
    arguments = ["--target", "t", "--out", str(tmp_path / "o"), "--work-dir", str(tmp_path / "w")]
    with pytest.raises(SettingsError, match="give one of them"):
        read_settings([*arguments, "--distil-steps", "3", "--distil-minutes", "1"])


def test_other_architectures_are_refused_by_name(target_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTargetError, match="cannot open"):
        open_target(str(tmp_path / "nothing"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UnsupportedTargetError):
        open_target(str(tmp_path))
    AutoTokenizer.from_pretrained(target_folder).save_pretrained(tmp_path)
    GPT2Config(vocab_size=259, n_layer=2, n_head=2, n_embd=16).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedTargetError, match="'gpt2' model without model.embed_tokens, model.layers"):
        open_target(str(tmp_path))


def test_a_target_is_shrunk_from_end_to_end_and_resuming_adds_nothing(
    target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"turns": [f"What is {n}?", "Why?"]}) + "\n" for n in range(6)))
    arguments = ["--target", str(target_folder), "--out", str(tmp_path / "ssm"), "--work-dir", str(tmp_path / "work")]
    arguments += ["--tokens", "4000", "--slots", "40", "--document-tokens", "150", "--draft-vocab-size", "100"]
    arguments += ["--distil-steps", "3", "--threads", "1", "--seed", "5", "--depths", "2", "--feature-layers", "1,2"]
    arguments += ["--eval-prompts", str(questions), "--eval-every", "3"]
    assert main(arguments) == 0
    card = (tmp_path / "ssm" / "README.md").read_text()
    assert "--seed 5" in card
    assert "greedy answers" in card
    assert str(tmp_path) not in card, "no folder of this machine belongs into a card"
    model = load_causal_lm(tmp_path / "ssm")
    assert model.config.vocab_size == 100
    weights = (tmp_path / "ssm" / "model.safetensors").read_bytes()
    assert main(arguments) == 2, "a used work folder needs --resume"
    assert main([*arguments, "--resume"]) == 0
    assert (tmp_path / "ssm" / "model.safetensors").read_bytes() == weights
    assert main([*arguments, "--resume", "--layers", "9"]) == 2
    assert "the target has 3 layers" in capsys.readouterr().err


def test_given_prompts_are_answered(target_folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"Question number {n}, what do you say?" for n in range(40)))
    arguments = ["--target", str(target_folder), "--out", str(tmp_path / "ssm"), "--work-dir", str(tmp_path / "work")]
    arguments += ["--prompts", str(prompts), "--draft-vocab-size", "64", "--document-tokens", "150", "--slots", "20"]
    assert main([*arguments, "--distil-steps", "0", "--threads", "1"]) == 0
    assert "prompt file" in (tmp_path / "ssm" / "README.md").read_text()


def test_a_pool_is_boosted_by_two_writers_and_resumed(target_folder: Path, tmp_path: Path) -> None:
    arguments = ["--target", str(target_folder), "--out", str(tmp_path / "ssm"), "--work-dir", str(tmp_path / "work")]
    arguments += ["--tokens", "3000", "--slots", "32", "--writers", "2", "--document-tokens", "150", "--threads", "2"]
    arguments += [
        "--draft-vocab-size",
        "100",
        "--layers",
        "2,1",
        "--depths",
        "2,0",
        "--mlp-width",
        "0,24",
        "--distil-steps",
        "3",
    ]
    arguments += ["--covered-top", "2", "--stored", "int8", "--distil-steps", "3"]
    assert main(arguments) == 0
    cards = [(tmp_path / f"ssm-{number}" / "README.md").read_text() for number in (1, 2)]
    assert "SSM 1 of a pool of 2: it was tuned on everything" in cards[0]
    assert "pool so far" in cards[1]
    assert "--layers 2,1" in cards[0]
    assert (tmp_path / "ssm-1" / "feature_maps.safetensors").is_file()
    assert not (tmp_path / "ssm-2" / "feature_maps.safetensors").exists()
    left = torch.load(tmp_path / "work" / "left-2.pt", weights_only=True)["left"]
    share = sum(int(kept.sum()) for kept in left.values()) / sum(len(kept) for kept in left.values())
    assert 0 < share < 1
    weights = [(tmp_path / f"ssm-{number}" / "model.safetensors").read_bytes() for number in (1, 2)]
    assert main([*arguments, "--resume"]) == 0
    assert weights == [(tmp_path / f"ssm-{number}" / "model.safetensors").read_bytes() for number in (1, 2)]
    (tmp_path / "work" / "distil-2.pt").unlink()
    assert main([*arguments, "--resume"]) == 0, "the second SSM alone is made again"
    assert weights[0] == (tmp_path / "ssm-1" / "model.safetensors").read_bytes()
    assert main([*arguments, "--resume", "--distil-steps", "5"]) == 1, (
        "the first SSM moved on: the second's base is gone"
    )
    again = torch.load(tmp_path / "work" / "left-2.pt", weights_only=True)
    assert "/step 5/" in again["stamp"]


def test_a_pool_is_boosted_by_mixture_and_resumed(
    target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--target", str(target_folder), "--out", str(tmp_path / "ssm"), "--work-dir", str(tmp_path / "work")]
    arguments += ["--tokens", "3000", "--slots", "32", "--document-tokens", "150", "--threads", "1"]
    arguments += ["--draft-vocab-size", "100", "--layers", "2,1,1,1", "--depths", "2,1,2,2", "--boost", "mixture"]
    assert main([*arguments, "--distil-steps", "3"]) == 0
    log = capsys.readouterr().err
    assert "mean of the laws of SSMs 1-2" in log
    assert "mean of the laws of SSMs 1-4" in log
    assert log.count("starts from the weights of the SSM before it") == 1, "only the fourth is like the one before"
    cards = [(tmp_path / f"ssm-{number}" / "README.md").read_text() for number in (1, 2, 3, 4)]
    assert all("--boost mixture" in card and "--covered-top" not in card for card in cards)
    assert "pool so far" not in cards[0]
    assert "pool so far, mean, 2" in cards[1], "the pool has the depths of its deepest SSM"
    assert "those of SSMs 1 to 2, which stay fixed" in cards[2]
    assert not list((tmp_path / "work").glob("left-*.pt")), "no position is dropped"
    weights = [(tmp_path / f"ssm-{number}" / "model.safetensors").read_bytes() for number in (1, 2, 3, 4)]
    (tmp_path / "work" / "distil-4.pt").unlink()
    assert main([*arguments, "--distil-steps", "3", "--resume"]) == 0
    assert weights == [(tmp_path / f"ssm-{number}" / "model.safetensors").read_bytes() for number in (1, 2, 3, 4)]
    assert main([*arguments[:-1], "drop", "--distil-steps", "3", "--resume"]) == 1, "the second was made for a mean"
    assert main([*arguments, "--distil-steps", "5", "--resume"]) == 1, "the first moved on: the second's mean is gone"
    assert "delete it" in capsys.readouterr().err


def test_dropping_and_mixing_are_not_asked_for_at_once(tmp_path: Path) -> None:
    arguments = ["--target", "t", "--out", str(tmp_path / "o"), "--work-dir", str(tmp_path / "w"), "--layers", "2,2"]
    with pytest.raises(SettingsError, match="drops no positions"):
        read_settings([*arguments, "--boost", "mixture", "--covered-top", "2"])
    assert read_settings(arguments).boost is Boost.DROP
    assert "--boost drop --covered-top 1" in read_settings(arguments).command()


def test_pools_need_as_many_numbers_as_ssms(tmp_path: Path) -> None:
    arguments = ["--target", "t", "--out", str(tmp_path / "o"), "--work-dir", str(tmp_path / "w"), "--layers", "2,1"]
    with pytest.raises(SettingsError) as raised:
        read_settings([*arguments, "--depths", "1,2,3", "--distil-minutes", "1,2,3", "--feature-layers", "0,3"])
    assert len(raised.value.problems) == 3
    shapes = read_settings([*arguments, "--depths", "4,0", "--distil-minutes", "20,10"]).shapes
    assert shapes == (SsmShape(2, 4, 0, 20.0), SsmShape(1, 0, 0, 10.0))


def test_a_base_model_of_another_architecture_is_shrunk(base_model_folder: Path, tmp_path: Path) -> None:
    """No chat template, and biases in its layers: both are the target's own business."""
    out = tmp_path / "ssm"
    arguments = ["--target", str(base_model_folder), "--out", str(out), "--work-dir", str(tmp_path / "work")]
    arguments += ["--tokens", "2500", "--slots", "40", "--document-tokens", "150", "--draft-vocab-size", "100"]
    assert main([*arguments, "--distil-steps", "2", "--threads", "1", "--depths", "1"]) == 0
    ssm = load_causal_lm(out)
    assert ssm.config.model_type == "qwen2"
    bias = load_causal_lm(base_model_folder).model.layers[1].self_attn.q_proj.bias
    torch.testing.assert_close(ssm.model.layers[1].self_attn.q_proj.bias, bias, atol=0.02, rtol=0.05)
    assert load_model(out, target_vocab_size=259).draft_vocab is not None
