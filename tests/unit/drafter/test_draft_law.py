"""From logits to children: greedy ranks by the law, sampling by the shared noise, and estimates are probabilities."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from specgrove.sampling.noise import NoiseRows, gumbel_row
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.sampling.target_choice import choose_tokens
from specgrove_drafter.members.law import ERROR_SCALE, LawRow, rank_children

GREEDY = SamplingParams(temperature=0.0)
VOCAB = 1000


def random_logits(num_rows: int, seed: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def test_greedy_children_are_the_likeliest_tokens_with_their_softened_probabilities() -> None:
    logits = random_logits(2, 1)
    for row, children in enumerate(rank_children(logits.clone(), [LawRow(GREEDY, 5)] * 2, 4)):
        probs = (logits[row] / ERROR_SCALE).softmax(-1)
        assert list(children.token_ids) == probs.topk(4).indices.tolist()
        assert [math.exp(p) for p in children.log_probs] == pytest.approx(probs.topk(4).values.tolist(), rel=1e-4)


@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.0, 1.7])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (20, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1)])
def test_with_draft_equal_to_target_the_first_child_is_the_targets_own_choice(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=99)
    logits = random_logits(24, 2)
    positions = list(range(10, 34))
    wanted = choose_tokens(logits, params, positions, NoiseRows(params.seed, VOCAB))
    ranked = rank_children(logits.clone(), [LawRow(params, position) for position in positions], 3)
    agreed = sum(children.token_ids[0] == token for children, token in zip(ranked, wanted, strict=True))
    # The shortlist leaves the tail of the law out, so a rare token is missed; without truncation at a high temperature
    # the tail is long.
    assert agreed >= (18 if temperature > 1 else 23)


def test_estimates_of_a_sampled_row_are_a_sub_distribution() -> None:
    params = SamplingParams(temperature=0.9, seed=3)
    [children] = rank_children(random_logits(1, 3), [LawRow(params, 7)], 50)
    total = sum(math.exp(p) for p in children.log_probs)
    assert 0.0 < total <= 1.0 + 1e-5
    assert list(children.log_probs) == sorted(children.log_probs, reverse=True)


def test_rows_of_different_sessions_do_not_disturb_each_other() -> None:
    logits = random_logits(3, 4)
    rows = [LawRow(SamplingParams(temperature=1.0, seed=5), 3), LawRow(GREEDY, 9), LawRow(SamplingParams(seed=6), 4)]
    together = rank_children(logits.clone(), rows, 5)
    alone = [rank_children(logits[i : i + 1].clone(), [rows[i]], 5)[0] for i in range(3)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]


def test_the_other_token_keeps_its_mass_and_is_never_proposed() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0, 0.5]])
    to_target = torch.tensor([40, 0, 30, 20])
    [children] = rank_children(logits.clone(), [LawRow(GREEDY, 1)], 4, to_target=to_target, other_id=1)
    assert children.token_ids == (30, 20, 40)
    assert sum(math.exp(p) for p in children.log_probs) < 0.15


def test_truncated_tokens_are_not_proposed() -> None:
    params = SamplingParams(temperature=1.0, top_k=2, seed=1)
    [children] = rank_children(random_logits(1, 6), [LawRow(params, 1)], 8)
    assert len(children.token_ids) == 2


def test_noise_is_that_of_the_target_token_not_of_the_draft_id() -> None:
    logits = torch.zeros(1, 4)
    to_target = torch.tensor([250, 7, 120, 33])
    params = SamplingParams(temperature=1.0, seed=8)
    [children] = rank_children(logits, [LawRow(params, 11)], 4, to_target=to_target)
    noise = gumbel_row(8, 11, VOCAB)
    assert list(children.token_ids) == sorted(to_target.tolist(), key=lambda token: -float(noise[token]))


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, seed=5)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_bias_moves_the_draft_s_law_as_it_moves_the_target_s(
    params: SamplingParams, rule: Rule, is_mapped: bool
) -> None:
    to_target = torch.arange(VOCAB) * 2 if is_mapped else None  # every other token of a larger vocabulary
    wanted, banned = (14, 6) if is_mapped else (7, 3)
    biased = replace(params, logit_bias=((banned, -100.0), (wanted, 100.0), (10**6, 100.0)))
    logits = random_logits(2, 6)
    logits[:, 3] = 50.0  # the draft itself would say nothing else
    rows = [LawRow(biased, 3, rule), LawRow(params, 3, rule)]
    first, second = rank_children(logits.clone(), rows, 4, to_target=to_target)
    assert first.token_ids[0] == wanted
    assert banned not in first.token_ids
    [alone] = rank_children(logits[1:].clone(), rows[1:], 4, to_target=to_target)
    assert second == alone
    assert second.token_ids[0] == banned
