"""From the target's text to an SSM: vocabulary, closed-form head, distillation, the exported folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgrove_drafter.tuning.agreement import NEVER, accepted_len, choice_ranks, measure_agreement
from specgrove_drafter.tuning.batches import collate, epoch_batches, is_held_out
from specgrove_drafter.tuning.distil import (
    Distillation,
    Progress,
    Recipe,
    batch_loss,
    choose_trained,
    make_optimizer,
    rate_factor,
)
from specgrove_drafter.tuning.errors import ResumeError
from specgrove_drafter.tuning.export import export_ssm, read_offsets
from specgrove_drafter.tuning.folded_head import FoldedHead
from specgrove_drafter.tuning.hub import Target, load_causal_lm, load_target_model
from specgrove_drafter.tuning.objective import coarse_kl, coarse_law
from specgrove_drafter.tuning.shards import Document
from specgrove_drafter.tuning.ssm import NormalEquations, build_ssm, fit_batches, fit_head, head_weight, trim_rows
from specgrove_drafter.tuning.vocabulary import DraftVocabulary, choose_vocabulary

MakeDocument = Callable[[int, int], Document]
CPU = torch.device("cpu")


@pytest.fixture
def vocabulary() -> DraftVocabulary:
    return DraftVocabulary(torch.arange(0, 259, 2), 259)  # every other token: 130 kept, 129 outside


@pytest.fixture
def ssm(target: Target, vocabulary: DraftVocabulary) -> Any:
    return build_ssm(load_target_model(target, CPU, pack=False), vocabulary, 2, {"eos_token_id": 1})


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
    equations = fit_head(ssm, fit_batches(documents, vocabulary, 10**6), head, vocabulary, ridge=1e-8)
    assert equations.num_rows == 720
    with torch.no_grad():
        got = ssm(input_ids=collate(documents[:1], vocabulary.to_draft()).tokens).logits[0]
    full = documents[0].states.float() @ head.T
    torch.testing.assert_close(got[:, :-1], full[:, vocabulary.target_ids], atol=0.05, rtol=0.02)
    outside = full[:, vocabulary.to_draft() == vocabulary.other_id].logsumexp(-1)
    error = (got[:, -1] - outside).square().mean()
    assert float(error) < 0.5 * float(outside.square().mean()), "the other class follows the mass outside"


def test_trimmed_table_ends_with_the_mean_of_the_rest(vocabulary: DraftVocabulary) -> None:
    table = torch.randn(259, 4)
    trimmed = trim_rows(table, vocabulary)
    torch.testing.assert_close(trimmed[:-1], table[0::2])
    torch.testing.assert_close(trimmed[-1], table[1::2].mean(0))


def test_ssm_has_the_targets_layers(target: Target, ssm: Any) -> None:
    model = load_target_model(target, CPU, pack=False)
    assert len(ssm.model.layers) == 2
    for name, weight in ssm.model.layers.state_dict().items():
        assert torch.equal(weight, model.model.layers.state_dict()[name])
    assert not ssm.config.tie_word_embeddings
    assert bool((ssm.model.norm.weight == 1).all())


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


def test_loss_ignores_padding(ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument) -> None:
    short, long = make_document(1, 6), make_document(2, 20)
    to_draft = vocabulary.to_draft()
    both = batch_loss(ssm, collate([short, long], to_draft), to_draft, 0.1)
    alone = [batch_loss(ssm, collate([document], to_draft), to_draft, 0.1) for document in (short, long)]
    torch.testing.assert_close(both, (6 * alone[0] + 20 * alone[1]) / 26)


def test_folded_head_says_what_its_product_says_and_trains_little(
    target: Target, ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument
) -> None:
    rows = ssm.lm_head.weight.detach()[:-1]
    ssm.lm_head = FoldedHead(rows, torch.randn(32, 32), torch.randn(1, 32))
    states = torch.randn(5, 32)
    torch.testing.assert_close(ssm.lm_head(states), states @ ssm.lm_head.fold().T, atol=1e-4, rtol=1e-4)
    choose_trained(ssm, tables=False)
    run = make_run(ssm, vocabulary, [make_document(1, 30)], 2)
    tables = ssm.lm_head.rows.clone(), ssm.model.embed_tokens.weight.detach().clone()
    before = ssm.lm_head.fold()
    run.advance()
    assert torch.equal(ssm.lm_head.rows, tables[0])
    assert torch.equal(ssm.model.embed_tokens.weight, tables[1])
    assert not torch.equal(ssm.lm_head.fold(), before)
    folded = ssm.lm_head.fold()
    choose_trained(ssm, tables=True)
    assert torch.equal(ssm.lm_head.weight, folded)
    assert all(weight.requires_grad for weight in ssm.parameters())


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


def test_exported_folder_loads_anywhere_and_says_the_same(
    ssm: Any, vocabulary: DraftVocabulary, tmp_path: Path
) -> None:
    torch.nn.init.normal_(ssm.lm_head.weight)
    before = {name: weight.clone() for name, weight in ssm.state_dict().items()}
    for _ in range(2):  # the second replaces the first
        size = export_ssm(ssm, vocabulary, "# card\n", tmp_path / "ssm", unknown_id=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ssm"]
    assert size == sum(path.stat().st_size for path in (tmp_path / "ssm").iterdir())
    loaded = load_causal_lm(tmp_path / "ssm")
    tokens = torch.randint(0, vocabulary.size, (2, 17))
    with torch.no_grad():
        want, got = ssm(input_ids=tokens).logits, loaded(input_ids=tokens).logits
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, before[name].half().float())
    torch.testing.assert_close(got, want, atol=0.05, rtol=0.02)
    assert loaded.config.draft_vocab_other_id == vocabulary.other_id
    assert loaded.config.vocab_size == vocabulary.size
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)
    assert torch.equal(read_offsets(tmp_path / "ssm"), vocabulary.offsets())
    for name, weight in ssm.state_dict().items():
        assert torch.equal(weight, before[name]), "exporting must not round the SSM itself"


def test_ranks_skip_the_other_class_and_tokens_outside_are_never_found(vocabulary: DraftVocabulary) -> None:
    logits = torch.zeros(3, vocabulary.size)
    logits[:, -1] = 9.0  # "other" is the likeliest, and must not count as a proposal
    logits[0, 5] = 3.0
    logits[1, 5], logits[1, 6] = 3.0, 4.0
    ranks = choice_ranks(logits, torch.tensor([10, 10, 11]), vocabulary)
    assert ranks.tolist() == [0, 1, NEVER]


def test_accepted_length_of_static_trees() -> None:
    always, never = torch.zeros(10, dtype=torch.int64), torch.full((10,), NEVER)
    assert accepted_len([always], (1, 1, 1, 1)) == 5.0
    assert accepted_len([never], (1, 1, 1, 1)) == 1.0
    second = torch.tensor([1, 0, 0, 1, 0, 0])
    assert accepted_len([second], (1, 1)) == pytest.approx(6 / 3), "steps of 1, 3 and 2 tokens"
    assert accepted_len([second], (2, 1)) == 3.0


def test_target_agrees_with_itself(target: Target, target_folder: Path, make_document: MakeDocument) -> None:
    """An SSM that is the whole target, over the whole vocabulary, is always right."""
    model = load_target_model(target, CPU, pack=False)
    vocabulary = DraftVocabulary(torch.arange(259), 259)
    ssm = build_ssm(model, vocabulary, 3, {"eos_token_id": 2})
    ssm.model.norm.load_state_dict(model.model.norm.state_dict())
    document = make_document(3, 40)
    with torch.no_grad():
        document.top_ids[:, 0] = model(input_ids=document.tokens.long()[None]).logits[0].argmax(-1).int()
    agreement = measure_agreement(ssm, [document], vocabulary)
    assert agreement.top[0] == 1.0
    assert agreement.num_positions == 40
    assert agreement.chain_len == 5.0
