"""Distillation: what is trained, resuming, the rate, the batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgrove_drafter.tuning.batches import epoch_batches, is_held_out
from specgrove_drafter.tuning.distil import (
    Distillation,
    Progress,
    Recipe,
    choose_trained,
    make_optimizer,
    rate_factor,
)
from specgrove_drafter.tuning.errors import ResumeError
from specgrove_drafter.tuning.hub import Target
from specgrove_drafter.tuning.shards import Document
from specgrove_drafter.tuning.vocabulary import DraftVocabulary
from support.tuning import randomise

MakeDocument = Callable[[int, int], Document]


def test_folded_head_says_what_the_maps_say_and_only_the_maps_are_trained(
    ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument
) -> None:
    randomise(ssm.lm_head)
    head = ssm.lm_head
    states = torch.randn(5, 32)
    torch.testing.assert_close(head(states), states @ head.fold().T, atol=1e-4, rtol=1e-4)
    choose_trained(ssm, tables=False)
    run = make_run(ssm, vocabulary, [make_document(1, 30)], 4)
    tables = head.rows.detach().clone(), ssm.model.embed_tokens.weight.detach().clone()
    before = {name: weight.detach().clone() for name, weight in head.named_parameters()}
    for _ in range(4):
        run.advance()
    assert torch.equal(head.rows, tables[0])
    assert torch.equal(ssm.model.embed_tokens.weight, tables[1])
    for name in ("token_map", "other", "state_maps", "feature_maps"):
        assert not torch.equal(getattr(head, name), before[name]), name
    choose_trained(ssm, tables=True)
    run = make_run(ssm, vocabulary, [make_document(1, 30)], 2)
    run.advance()
    assert not torch.equal(head.rows, tables[0])


def test_fixed_rows_give_the_same_logits_and_the_same_gradient_for_the_other_class(ssm: Any) -> None:
    head = ssm.lm_head
    randomise(head)
    guesses = torch.randn(7, 32)
    results = []
    for is_free in (True, False):
        head.zero_grad()
        head.rows.requires_grad_(is_free)
        inputs = guesses.clone().requires_grad_()
        logits = head.read(inputs)
        logits.square().sum().backward()
        results.append((logits.detach(), head.other.grad.clone(), inputs.grad.clone()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def make_run(ssm: Any, vocabulary: DraftVocabulary, documents: list[Document], max_steps: int) -> Distillation:
    recipe = Recipe(max_steps=max_steps, max_seconds=None, learning_rate=3e-3, batch_tokens=200, seed=4)
    return Distillation(ssm, make_optimizer(ssm, recipe), recipe, documents, vocabulary, 0.1)


def test_resumed_distillation_ends_with_the_same_weights(
    target: Target, ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument, tmp_path: Path
) -> None:
    documents = [make_document(number, 20 + number) for number in range(12)]
    start = {name: weight.clone() for name, weight in ssm.state_dict().items()}
    straight = make_run(ssm, vocabulary, documents, 6)
    losses = [straight.advance() for _ in range(6)]
    assert straight.is_done
    wanted = {name: weight.clone() for name, weight in ssm.state_dict().items()}
    ssm.load_state_dict(start)
    first = make_run(ssm, vocabulary, documents, 6)
    early = [first.advance() for _ in range(3)]
    first.save(tmp_path / "distil.pt", "stamp")
    ssm.load_state_dict(start)
    second = make_run(ssm, vocabulary, documents, 6)
    second.load(tmp_path / "distil.pt", "stamp")
    assert second.progress.step == 3
    assert early + [second.advance() for _ in range(3)] == pytest.approx(losses)
    for name, weight in ssm.state_dict().items():
        torch.testing.assert_close(weight, wanted[name])
    with pytest.raises(ResumeError):
        second.load(tmp_path / "distil.pt", "another stamp")


def test_distillation_lowers_the_loss(ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument) -> None:
    documents = [make_document(number, 24) for number in range(4)]
    run = make_run(ssm, vocabulary, documents, 40)
    losses = []
    while not run.is_done:
        losses.append(run.advance())
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])


def test_rate_rises_then_falls_to_nothing() -> None:
    assert rate_factor(0.0, 0.1) > 0
    assert rate_factor(0.1, 0.1) == pytest.approx(1.0)
    assert rate_factor(1.0, 0.1) == pytest.approx(0.0)
    assert Progress(step=3).used_share(Recipe(max_steps=0, max_seconds=None)) == 1.0
    assert Progress(seconds=30).used_share(Recipe(max_steps=None, max_seconds=60)) == 0.5


def test_an_epoch_holds_every_document_once() -> None:
    lengths = [10 + number % 50 for number in range(300)]
    batches = epoch_batches(lengths, 400, random.Random(1))
    assert sorted(number for batch in batches for number in batch) == list(range(300))
    assert all(len(batch) * max(lengths[number] for number in batch) <= 400 for batch in batches)
    assert batches != epoch_batches(lengths, 400, random.Random(2))


def test_every_thirty_second_document_is_held_out(make_document: MakeDocument) -> None:
    assert [number for number in range(64) if is_held_out(make_document(number, 1))] == [31, 63]
