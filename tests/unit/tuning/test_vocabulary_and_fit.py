"""What the target says most, and the closed-form head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specgrove_drafter.tuning.batches import collate
from specgrove_drafter.tuning.depth_head import DepthHead
from specgrove_drafter.tuning.hub import Target, load_target_model
from specgrove_drafter.tuning.shards import Document
from specgrove_drafter.tuning.ssm import NormalEquations, build_ssm, fit_batches, fit_head, head_weight, trim_rows
from specgrove_drafter.tuning.vocabulary import DraftVocabulary, choose_vocabulary

MakeDocument = Callable[[int, int], Document]
CPU = torch.device("cpu")


def test_offsets_lead_back_to_the_same_tokens(vocabulary: DraftVocabulary) -> None:
    offsets = vocabulary.offsets(unknown_id=5)
    draft_ids = torch.arange(vocabulary.size)
    targets = draft_ids + offsets
    assert torch.equal(targets[:-1], vocabulary.target_ids)
    assert int(targets[-1]) == 5
    assert torch.equal(DraftVocabulary.from_offsets(offsets, 259).target_ids, vocabulary.target_ids)
    to_draft = vocabulary.to_draft()
    assert torch.equal(to_draft[vocabulary.target_ids], draft_ids[:-1])
    assert int((to_draft == vocabulary.other_id).sum()) == 129


def test_vocabulary_keeps_what_the_target_says_most(make_document: MakeDocument) -> None:
    document = make_document(1, 60)
    document.top_ids[:, 0] = torch.tensor([7, 8, 9]).repeat(20).int()
    vocabulary, coverage = choose_vocabulary([document], 6, 259, always=[258])
    assert {7, 8, 9, 258} <= set(vocabulary.target_ids.tolist())
    assert vocabulary.size == 6
    assert coverage == 1.0


def test_vocabulary_refuses_ids_out_of_order() -> None:
    with pytest.raises(ValueError):
        DraftVocabulary(torch.tensor([3, 3, 4]), 10)
    with pytest.raises(ValueError):
        DraftVocabulary(torch.tensor([3, 10]), 10)


def test_ridge_fit_recovers_a_known_map() -> None:
    noise = torch.Generator().manual_seed(0)
    true_map = torch.randn(12, 7, generator=noise)
    equations = NormalEquations.empty(12, 7)
    for _ in range(5):
        inputs = torch.randn(40, 12, generator=noise)
        equations.add(inputs, inputs @ true_map)
    assert equations.num_rows == 200
    torch.testing.assert_close(equations.solve(1e-8), true_map, atol=1e-4, rtol=1e-4)
    assert float(equations.solve(1e3).abs().mean()) < 0.01 * float(true_map.abs().mean())


def test_fitted_head_reads_the_map_through_the_targets_head(
    target: Target, ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument
) -> None:
    """When the target's final states are a linear image of the SSM's, the SSM's logits become the target's own."""
    ssm.lm_head = DepthHead.blank(ssm.lm_head.rows.detach(), 0, 0)
    noise = torch.Generator().manual_seed(1)
    true_map = 0.4 * torch.randn(32, 32, generator=noise)
    documents = []
    for number in range(12):
        document = make_document(number, 60)
        batch = collate([document], vocabulary.to_draft())
        with torch.no_grad():
            inputs = ssm.model(input_ids=batch.tokens).last_hidden_state[0]
        document.states[:] = (inputs @ true_map).half()
        documents.append(document)
    head = head_weight(load_target_model(target, CPU, pack=False))
    assert fit_head(ssm, fit_batches(documents, vocabulary, 10**6), head, vocabulary, ridge=1e-8) == 720
    with torch.no_grad():
        got = ssm(input_ids=collate(documents[:1], vocabulary.to_draft()).tokens).logits[0]
    full = documents[0].states.float() @ head.T
    torch.testing.assert_close(got[:, :-1], full[:, vocabulary.target_ids], atol=0.05, rtol=0.02)
    outside = full[:, vocabulary.to_draft() == vocabulary.other_id].logsumexp(-1)
    error = (got[:, -1] - outside).square().mean()
    assert float(error) < 0.5 * float(outside.square().mean()), "the other class follows the mass outside"


def test_fitted_maps_of_a_depth_read_the_features_that_many_rows_further_up(
    target: Target, ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument
) -> None:
    """When the final state at a row is a linear image of the features two rows up, only depth 2 can know it."""
    noise = torch.Generator().manual_seed(2)
    true_map = 0.3 * torch.randn(64, 32, generator=noise)
    documents = []
    for number in range(12):
        document = make_document(number, 60)
        document.states[2:] = (document.features[:-2].float() @ true_map).half()
        documents.append(document)
    head = head_weight(load_target_model(target, CPU, pack=False))
    fit_head(ssm, fit_batches(documents, vocabulary, 10**6), head, vocabulary, ridge=1e-6)
    batch = collate(documents[:1], vocabulary.to_draft())
    errors = []
    with torch.no_grad():
        states = ssm.model(input_ids=batch.tokens).last_hidden_state[0]
        for depth in (0, 1, 2):
            before = batch.features_before(depth)[0][0].float() if depth else None
            guesses = ssm.lm_head.guess(states, before, depth)[3:]
            errors.append(float((guesses - documents[0].states.float()[3:]).square().mean()))
    assert errors[2] < 0.1 * min(errors[:2]), errors


def test_trimmed_table_ends_with_the_mean_of_the_rest(vocabulary: DraftVocabulary) -> None:
    table = torch.randn(259, 4)
    trimmed = trim_rows(table, vocabulary)
    torch.testing.assert_close(trimmed[:-1], table[0::2])
    torch.testing.assert_close(trimmed[-1], table[1::2].mean(0))


def test_a_narrow_ssm_keeps_the_channels_that_move_most(target: Target, vocabulary: DraftVocabulary) -> None:
    model = load_target_model(target, CPU, pack=False)
    with torch.no_grad():
        mlp = model.model.layers[0].mlp
        for channel in range(8, 48):  # all but the first eight
            mlp.up_proj.weight[channel] *= 1e-3
    narrow = build_ssm(model, vocabulary, 1, {"eos_token_id": 1}, mlp_width=8)
    assert narrow.config.intermediate_size == 8
    kept = narrow.model.layers[0].mlp
    states = torch.randn(5, 32)
    torch.testing.assert_close(kept(states), mlp(states), atol=2e-2, rtol=2e-2)
    assert torch.equal(kept.down_proj.weight, mlp.down_proj.weight[:, :8])


def test_ssm_has_the_targets_layers(target: Target, ssm: Any) -> None:
    model = load_target_model(target, CPU, pack=False)
    assert len(ssm.model.layers) == 2
    for name, weight in ssm.model.layers.state_dict().items():
        assert torch.equal(weight, model.model.layers.state_dict()[name])
    assert not ssm.config.tie_word_embeddings
    assert bool((ssm.model.norm.weight == 1).all())
