"""What distillation minimises, and at which positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specgrove_drafter.tuning.batches import collate
from specgrove_drafter.tuning.depth_head import DepthHead
from specgrove_drafter.tuning.distil import (
    batch_loss,
)
from specgrove_drafter.tuning.objective import coarse_kl, coarse_law
from specgrove_drafter.tuning.shards import Document, Role
from specgrove_drafter.tuning.vocabulary import DraftVocabulary
from support.tuning import NUM_FEATURES

MakeDocument = Callable[[int, int], Document]


def test_classes_of_the_law_sum_to_one_and_other_collects_the_mass_outside(vocabulary: DraftVocabulary) -> None:
    law = torch.randn(3, 259).mul(2).log_softmax(-1).topk(16)
    coarse = coarse_law(law.indices, law.values, vocabulary.to_draft(), tail_outside=0.25)
    torch.testing.assert_close(coarse.listed.sum(-1) + coarse.other + coarse.rest, torch.ones(3))
    probabilities, odd = law.values.exp(), law.indices % 2 == 1
    tail = 1 - probabilities.sum(-1)
    torch.testing.assert_close(coarse.other, (probabilities * odd).sum(-1) + 0.25 * tail)
    torch.testing.assert_close(coarse.rest, 0.75 * tail)


def test_coarse_kl_is_the_kl_of_the_merged_laws(vocabulary: DraftVocabulary) -> None:
    law = torch.randn(4, 259).mul(2).log_softmax(-1).topk(16)
    coarse = coarse_law(law.indices, law.values, vocabulary.to_draft(), tail_outside=0.25)
    logits = torch.randn(4, vocabulary.size)
    got = coarse_kl(logits, coarse)
    for row in range(4):
        ids = coarse.ids[row][coarse.listed[row] > 0]
        draft = logits[row].softmax(-1)
        merged = torch.cat([draft[ids], draft[-1:], (1 - draft[ids].sum() - draft[-1])[None]])
        wanted = torch.cat(
            [coarse.listed[row][coarse.listed[row] > 0], coarse.other[row : row + 1], coarse.rest[row : row + 1]]
        )
        torch.testing.assert_close(got[row], (wanted * (wanted / merged).log()).sum(), atol=1e-4, rtol=1e-4)
    assert bool((got > 0).all())


def test_gradient_of_the_kl_is_that_of_its_formula(vocabulary: DraftVocabulary) -> None:
    law = torch.randn(6, 259).mul(2).log_softmax(-1).topk(16)
    coarse = coarse_law(law.indices, law.values, vocabulary.to_draft(), tail_outside=0.25)
    logits = torch.randn(6, vocabulary.size, requires_grad=True)
    upstream = torch.rand(6)
    (coarse_kl(logits, coarse) * upstream).sum().backward()
    got = logits.grad
    free = logits.detach().clone().requires_grad_()
    p = free.softmax(-1)
    listed = p.gather(-1, coarse.ids)
    is_listed = coarse.listed > 0
    rest = 1 - (listed * is_listed).sum(-1) - p[:, -1]
    cross = torch.where(is_listed, coarse.listed * listed.log(), 0.0).sum(-1)
    cross = cross + coarse.other * p[:, -1].log() + coarse.rest * rest.log()
    (-cross * upstream).sum().backward()
    torch.testing.assert_close(got, free.grad, atol=1e-5, rtol=1e-4)


def test_loss_ignores_padding(ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument) -> None:
    short, long = make_document(1, 6), make_document(2, 20)
    to_draft = vocabulary.to_draft()
    ssm.lm_head = DepthHead.blank(ssm.lm_head.rows.detach(), 0, 0)  # one depth, so that nothing is left to chance
    chance = torch.Generator()
    both = batch_loss(ssm, collate([short, long], to_draft), to_draft, 0.1, chance)
    alone = [batch_loss(ssm, collate([document], to_draft), to_draft, 0.1, chance) for document in (short, long)]
    torch.testing.assert_close(both, (6 * alone[0] + 20 * alone[1]) / 26, atol=2e-2, rtol=2e-3)


def test_loss_counts_kept_positions_only(ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument) -> None:
    ssm.lm_head = DepthHead.blank(ssm.lm_head.rows.detach(), 0, 0)
    document, to_draft = make_document(1, 12), vocabulary.to_draft()
    chance = torch.Generator()
    halves = []
    for first in (0, 6):
        kept = torch.zeros(12, dtype=torch.bool)
        kept[first : first + 6] = True
        halves.append(batch_loss(ssm, collate([document], to_draft, {1: kept}), to_draft, 0.1, chance))
    whole = batch_loss(ssm, collate([document], to_draft), to_draft, 0.1, chance)
    torch.testing.assert_close(whole, (halves[0] + halves[1]) / 2, atol=2e-2, rtol=2e-3)
    assert abs(float(halves[0].detach() - halves[1].detach())) > 0.05
    nothing = batch_loss(
        ssm, collate([document], to_draft, {1: torch.zeros(12, dtype=torch.bool)}), to_draft, 0.1, chance
    )
    assert float(nothing.detach()) == 0.0


def test_features_of_a_depth_come_from_that_many_rows_further_up(
    vocabulary: DraftVocabulary, make_document: MakeDocument
) -> None:
    document = make_document(1, 10)
    document.roles[:3] = Role.UNSEEN
    batch = collate([document], vocabulary.to_draft())
    assert batch.features.shape == (1, 10, NUM_FEATURES)
    torch.testing.assert_close(batch.features[0, :, :64], document.features)
    assert float(batch.features[0, 5, 64:].float().square().mean()) == pytest.approx(1.0, abs=1e-2)
    before, known = batch.features_before(2)
    assert torch.equal(before[0, 2:], batch.features[0, :-2])
    assert known[0].tolist() == [False] * 5 + [True] * 5
