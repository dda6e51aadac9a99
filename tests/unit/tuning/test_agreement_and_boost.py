"""How often an SSM is right, and what it leaves to the next one of the pool."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specgrove_drafter.tuning.agreement import (
    NEVER,
    accepted_len,
    answer_ranks,
    choice_ranks,
    log_mean_law,
    measure_agreement,
)
from specgrove_drafter.tuning.boost import pool_coverage, positions_left
from specgrove_drafter.tuning.depth_head import DepthHead
from specgrove_drafter.tuning.evaluate import PoolEvaluation
from specgrove_drafter.tuning.hub import Target, load_target_model
from specgrove_drafter.tuning.shards import Document, Role
from specgrove_drafter.tuning.ssm import build_ssm
from specgrove_drafter.tuning.vocabulary import DraftVocabulary
from support.tuning import randomise

MakeDocument = Callable[[int, int], Document]
CPU = torch.device("cpu")


def test_ranks_skip_the_other_class_and_tokens_outside_are_never_found(vocabulary: DraftVocabulary) -> None:
    logits = torch.zeros(3, vocabulary.size)
    logits[:, -1] = 9.0  # "other" is the likeliest, and must not count as a proposal
    logits[0, 5] = 3.0
    logits[1, 5], logits[1, 6] = 3.0, 4.0
    ranks = choice_ranks(logits, torch.tensor([10, 10, 11]), vocabulary)
    assert ranks.tolist() == [0, 1, NEVER]


def test_accepted_length_of_static_trees() -> None:
    always, never = torch.zeros(1, 10, dtype=torch.int64), torch.full((1, 10), NEVER)
    assert accepted_len([always], (1, 1, 1, 1)) == 5.0
    assert accepted_len([never], (1, 1, 1, 1)) == 1.0
    second = torch.tensor([[1, 0, 0, 1, 0, 0]])
    assert accepted_len([second], (1, 1)) == pytest.approx(6 / 3), "steps of 1, 3 and 2 tokens"
    assert accepted_len([second], (2, 1)) == 3.0
    by_depth = torch.tensor([[NEVER] * 9, [0] * 9])  # right at depth 1 alone, where there are features
    assert accepted_len([by_depth], (1, 1, 1)) == pytest.approx(9 / 5), "four steps of 2 tokens, and the last one"


def test_what_one_ssm_predicts_is_not_left_to_the_next(
    ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument
) -> None:
    randomise(ssm.lm_head)
    documents = [make_document(number, 20 + number) for number in range(5)]
    documents[0].roles[:4] = Role.UNSEEN
    left = positions_left(ssm, documents, vocabulary, covered_top=3)
    for document, ranks in zip(documents, answer_ranks([ssm], documents, vocabulary), strict=True):
        answered = document.roles == Role.ANSWER
        # bfloat16 may swap neighbours in the ranking
        assert float((left[document.document_id][answered] == (ranks[1] >= 3)).float().mean()) > 0.9
    assert bool(left[0][:4].all())
    nothing = {document.document_id: torch.zeros(len(document), dtype=torch.bool) for document in documents}
    again = positions_left(ssm, documents, vocabulary, 3, before=nothing)
    assert not any(bool(kept.any()) for kept in again.values()), "what an earlier SSM took stays dropped"


def test_a_pool_covers_what_any_of_its_ssms_has() -> None:
    one, two = torch.tensor([[9, 9, 9, 9], [0, 5, 7, 7]]), torch.tensor([[3, 0, 1, 7]])
    assert pool_coverage([[one], [two]], 1) == 0.5
    assert pool_coverage([[one], [two]], 2) == 0.75
    assert pool_coverage([[one]], 1) == 0.25


def test_a_pool_proposes_from_the_mean_of_its_laws() -> None:
    sure, unsure = torch.tensor([[5.0, 0.0, 0.0]]), torch.tensor([[10.0, 11.0, 10.0]])
    mean = log_mean_law([sure, unsure])
    torch.testing.assert_close(mean.exp(), (sure.softmax(-1) + unsure.softmax(-1)) / 2)
    assert mean.argmax() == 0, "scores of different scale count by the laws that they stand for"


def test_mean_law_of_twins_ranks_as_one_and_a_shallower_ssm_reads_its_states_where_it_has_no_maps(
    ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument
) -> None:
    randomise(ssm.lm_head)
    documents = [make_document(number, 25) for number in range(3)]
    twins = answer_ranks([ssm, copy.deepcopy(ssm)], documents, vocabulary)
    for of_twins, alone in zip(twins, answer_ranks([ssm], documents, vocabulary), strict=True):
        assert float((of_twins == alone).float().mean()) > 0.99  # rounding may swap neighbours
    flat = copy.deepcopy(ssm)
    flat.lm_head = DepthHead.blank(ssm.lm_head.rows.detach(), 0, 0)
    flat.lm_head.token_map.data.copy_(1000 * torch.eye(32))  # certain of its word, so that the mean is led by it
    pool = answer_ranks([ssm, flat], documents, vocabulary)
    own = answer_ranks([flat], documents, vocabulary)
    for of_pool, of_flat in zip(pool, own, strict=True):
        assert of_pool.shape == (3, 25)
        assert of_flat.shape == (1, 25)
        assert all(bool(((row == 0) >= (of_flat[0] == 0)).all()) for row in of_pool)


def test_measures_of_a_pool_grow_with_it(ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument) -> None:
    randomise(ssm.lm_head)
    other = copy.deepcopy(ssm)
    randomise(other.lm_head)
    documents = [make_document(number, 40) for number in range(4)]
    pool = PoolEvaluation({"text": documents}, vocabulary)
    first, second = pool.add(ssm)["text"], pool.add(other)["text"]
    assert first.newest == first.mean == measure_agreement([ssm], documents, vocabulary)
    assert first.any_top == first.newest.top_by_depth[0]
    assert second.newest == measure_agreement([other], documents, vocabulary)
    assert second.mean == measure_agreement([ssm, other], documents, vocabulary)
    assert second.mean != second.newest
    assert all(both >= one for both, one in zip(second.any_top, first.any_top, strict=True))


def test_target_agrees_with_itself(target: Target, make_document: MakeDocument) -> None:
    """An SSM that is the whole target, over the whole vocabulary, is always right."""
    model = load_target_model(target, CPU, pack=False)
    vocabulary = DraftVocabulary(torch.arange(259), 259)
    ssm = build_ssm(model, vocabulary, 3, {"eos_token_id": 2})
    ssm.model.norm.load_state_dict(model.model.norm.state_dict())
    document = make_document(3, 40)
    with torch.no_grad():
        document.top_ids[:, 0] = model(input_ids=document.tokens.long()[None]).logits[0].argmax(-1).int()
    agreement = measure_agreement([ssm], [document], vocabulary)
    assert agreement.top[0] == 1.0
    assert agreement.num_positions == 40
    assert agreement.chain_len == 5.0
