"""Ranking in one compiled pass: the children that torch's operators give, in their order."""

from __future__ import annotations

import pytest
import torch

from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove_drafter.members.law import LawRow, rank_children
from specgrove_drafter.trees.growth import Children

pytest.importorskip("numba")
GREEDY = SamplingParams(temperature=0.0)


def random_logits(num_rows: int, num_models: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, num_models, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3.0


def rows_of(num_rows: int, num_models: int, *samplings: SamplingParams) -> list[LawRow]:
    weights = torch.rand(num_rows, num_models, generator=torch.Generator().manual_seed(1)) + 0.1
    log_weights = (weights / weights.sum(-1, keepdim=True)).log().tolist()
    return [
        LawRow(samplings[row % len(samplings)], 5 + row, Rule.COUPLED, tuple(log_weights[row]))
        for row in range(num_rows)
    ]


def assert_alike(ours: list[Children], theirs: list[Children]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=2e-5)
        assert len(one.shares) == len(other.shares)
        for own, share in zip(one.shares, other.shares, strict=True):
            assert own == pytest.approx(share, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("num_models", [1, 2, 3])
@pytest.mark.parametrize("vocab_size", [7, 96, 1001])
def test_children_are_those_of_torch(num_models: int, vocab_size: int) -> None:
    logits, rows = random_logits(6, num_models, vocab_size), rows_of(6, num_models, GREEDY)
    to_target = torch.randperm(5000, generator=torch.Generator().manual_seed(2))[:vocab_size]
    for count in (1, 8, min(vocab_size + 3, 99)):  # of more than that some are equal
        for other_id in (None, 0, vocab_size - 1):
            ways = [
                rank_children(logits, rows, count, to_target=to_target, other_id=other_id, may_compile=may_compile)
                for may_compile in (True, False)
            ]
            assert_alike(*ways)


@pytest.mark.parametrize("num_models", [1, 2])
def test_greedy_and_sampled_rows_mix(num_models: int) -> None:
    samplings = (
        GREEDY,
        SamplingParams(temperature=0.8, seed=3),
        SamplingParams(temperature=1.3, seed=3, top_k=5),
        SamplingParams(temperature=0.7, seed=4, top_p=0.8, min_p=0.01),
    )
    logits, rows = random_logits(9, num_models, 600), rows_of(9, num_models, *samplings)
    assert_alike(*(rank_children(logits, rows, 8, other_id=9, may_compile=may) for may in (True, False)))


def test_part_of_a_wider_head_is_ranked() -> None:
    """A padded SSM knows more ids than the target."""
    logits, rows = random_logits(3, 2, 200)[..., :150], rows_of(3, 2, GREEDY)
    assert_alike(*(rank_children(logits, rows, 8, may_compile=may) for may in (True, False)))


def test_removed_tokens_are_left_out() -> None:
    logits = torch.full((1, 1, 50), float("-inf"))
    logits[0, 0, [3, 4]] = torch.tensor([1.0, 2.0])
    [children] = rank_children(logits, rows_of(1, 1, GREEDY), 8, may_compile=True)
    assert children.token_ids == (4, 3)


def test_drawn_children_are_torchs_business() -> None:
    params = SamplingParams(temperature=0.8, seed=3)
    rows = [LawRow(params, 5, Rule.MSS), LawRow(GREEDY, 6)]
    logits = random_logits(2, 1, 90)
    assert_alike(*(rank_children(logits, rows, 8, may_compile=may) for may in (True, False)))
