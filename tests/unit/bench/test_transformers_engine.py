"""`transformers` beside us: an SSM with a trimmed vocabulary really drafts for it, and the tokens stay the target's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specgrove_bench.engines.assistant import load_assistant
from specgrove_bench.engines.transformers_engine import TransformersClient, TransformersTarget
from specgrove_bench.request import Ask
from support.tiny_models import VOCAB_SIZE, own_model, write_tiny_model

_OTHER_ID = 47
_KEPT = tuple(range(0, 94, 2))  # target ids of the draft ids 0 to 46


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("engine") / "target")


@pytest.fixture(scope="module")
def trimmed(folder: Path) -> Path:
    """The target itself with every second token, and the last draft id for all others."""
    model = own_model(folder)
    rows = torch.tensor([*_KEPT, 1])
    small = folder.parent / "trimmed"
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight[rows].clone()
        head = model.get_output_embeddings().weight[rows].clone()
    model.resize_token_embeddings(len(rows))
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(embedding)
        model.get_output_embeddings().weight.copy_(head)
    model.save_pretrained(small)
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**config, "draft_vocab_other_id": _OTHER_ID}))
    offsets = torch.tensor([*_KEPT, 0]) - torch.arange(len(rows))
    save_file({"d2t": offsets}, small / "draft_vocab.safetensors")
    return small


def _ask(*token_ids: int, temperature: float = 0.0) -> Ask:
    return Ask(0, "own", token_ids, max_tokens=16, temperature=temperature, ignore_eos=True)


def test_logits_of_tokens_outside_the_trimmed_vocabulary_are_minus_infinity(folder: Path, trimmed: Path) -> None:
    logits = load_assistant(trimmed, VOCAB_SIZE)(torch.tensor([[4, 6, 8]])).logits
    inside = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
    inside[list(_KEPT)] = True
    assert logits.shape == (1, 3, VOCAB_SIZE)
    assert torch.isfinite(logits[..., inside]).all()
    assert torch.isneginf(logits[..., ~inside]).all()


def test_inside_the_vocabulary_the_assistant_says_what_its_own_rows_say(folder: Path, trimmed: Path) -> None:
    prompt = torch.tensor([[4, 6, 8]])  # kept tokens alone: the trimmed model sees what the target sees
    own = own_model(folder)(prompt).logits
    trimmed_logits = load_assistant(trimmed, VOCAB_SIZE)(prompt).logits
    torch.testing.assert_close(trimmed_logits[..., list(_KEPT)], own[..., list(_KEPT)])


@pytest.mark.parametrize("prompt", [(5, 9, 30), (7, 8), (40, 41, 42, 43)])
def test_assisted_answer_is_the_plain_one(folder: Path, trimmed: Path, prompt: tuple[int, ...]) -> None:
    target = TransformersTarget(folder)
    plain = TransformersClient(target).generate(_ask(*prompt))
    assisted = TransformersClient(target, trimmed).generate(_ask(*prompt))
    assert assisted.token_ids == plain.token_ids
    assert [chunk.num_tokens for chunk in plain.chunks] == [1] * 16
    assert assisted.num_tokens == 16


def test_good_assistant_brings_several_tokens_at_once(folder: Path) -> None:
    assisted = TransformersClient(TransformersTarget(folder), folder, num_assistant_tokens=4).generate(_ask(5, 9, 30))
    assert len(assisted.chunks) < 16
    assert assisted.num_tokens == 16


def test_sampling_repeats_with_its_seed(folder: Path) -> None:
    client = TransformersClient(TransformersTarget(folder))
    first, second = (client.generate(_ask(5, 9, temperature=1.0)) for _ in range(2))
    assert first.token_ids == second.token_ids
