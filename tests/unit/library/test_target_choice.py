"""What the sampler keeps, in which order, at its edges; and that a row chooses alike in any company."""

from __future__ import annotations

import math

import pytest
import torch

from specgrove.sampling.noise import NoiseRows
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.target_choice import choose_tokens, process_logits

FOUR = torch.tensor([[math.log(prob) for prob in (0.1, 0.4, 0.2, 0.3)]])


def _kept(logits: torch.Tensor, params: SamplingParams) -> list[int]:
    return torch.isfinite(process_logits(logits, params))[0].nonzero().flatten().tolist()


def _probs(logits: torch.Tensor, params: SamplingParams) -> list[float]:
    return process_logits(logits, params).softmax(-1)[0].tolist()


def _choose(logits: torch.Tensor, params: SamplingParams, positions: list[int], **suppressed: object) -> list[int]:
    return choose_tokens(logits, params, positions, NoiseRows(params.seed, logits.shape[-1]), **suppressed)  # type: ignore[arg-type]


def test_nothing_asked_nothing_removed() -> None:
    assert _probs(FOUR, SamplingParams()) == pytest.approx([0.1, 0.4, 0.2, 0.3])


def test_temperature_sharpens_and_flattens() -> None:
    squared = [prob**2 for prob in (0.1, 0.4, 0.2, 0.3)]
    assert _probs(FOUR, SamplingParams(temperature=0.5)) == pytest.approx([p / sum(squared) for p in squared])
    assert _probs(FOUR, SamplingParams(temperature=100.0)) == pytest.approx([0.25] * 4, abs=0.01)


@pytest.mark.parametrize(
    ("top_k", "kept"), [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (0, [0, 1, 2, 3])]
)
def test_top_k_keeps_the_likeliest(top_k: int, kept: list[int]) -> None:
    assert _kept(FOUR, SamplingParams(top_k=top_k)) == kept


@pytest.mark.parametrize("top_k", [5, 10**6, 2**31 - 1])
def test_top_k_beyond_the_vocabulary_keeps_everything(top_k: int) -> None:
    assert _kept(FOUR, SamplingParams(top_k=top_k)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-9, [1]), (0.39, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(top_p: float, kept: list[int]) -> None:
    assert _kept(FOUR, SamplingParams(top_p=top_p)) == kept


@pytest.mark.parametrize(("min_p", "kept"), [(0.2, [0, 1, 2, 3]), (0.3, [1, 2, 3]), (0.6, [1, 3]), (1.0, [1])])
def test_min_p_is_relative_to_the_likeliest(min_p: float, kept: list[int]) -> None:
    assert _kept(FOUR, SamplingParams(min_p=min_p)) == kept


def test_truncation_is_top_k_then_top_p_then_min_p() -> None:
    # After top_k = 2 the law is (4/7, 3/7): 0.56 of it needs the first token only, 0.58 both. Of the full law, 0.56
    # would need two tokens.
    assert _kept(FOUR, SamplingParams(top_k=2, top_p=0.56)) == [1]
    assert _kept(FOUR, SamplingParams(top_k=2, top_p=0.58)) == [1, 3]
    assert _kept(FOUR, SamplingParams(top_k=3, top_p=0.9, min_p=0.74)) == [1, 3]
    assert _kept(FOUR, SamplingParams(top_k=3, top_p=0.9, min_p=0.76)) == [1]


def test_temperature_comes_before_truncation() -> None:
    # At temperature 0.5 the law is (1, 16, 4, 9) / 30: the first token reaches 0.5 alone; at 1.0 it does not.
    assert _kept(FOUR, SamplingParams(temperature=0.5, top_p=0.5)) == [1]
    assert _kept(FOUR, SamplingParams(temperature=1.0, top_p=0.5)) == [1, 3]


def test_ties_at_the_edge_of_top_k_are_kept_and_ties_of_top_p_are_cut_in_order() -> None:
    flat = torch.zeros(1, 4)
    assert _kept(flat, SamplingParams(top_k=2)) == [0, 1, 2, 3]
    assert _kept(flat, SamplingParams(top_p=0.4)) == [0, 1]
    assert _kept(flat, SamplingParams(min_p=1.0)) == [0, 1, 2, 3]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-38, 1e-40, 1e-45, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(3)) * 3
    params = SamplingParams(temperature=temperature, seed=4)
    assert _choose(logits, params, [7, 8, 9, 10, 11]) == logits.argmax(-1).tolist()


def test_huge_logits_stay_numbers() -> None:
    logits = torch.tensor([[3.0e38, -3.0e38, 0.0]])
    for params in (SamplingParams(), SamplingParams(temperature=0.01, top_p=0.5, top_k=2, min_p=0.1)):
        assert _choose(logits, params, [3]) == [0]


def test_the_likeliest_token_is_never_removed() -> None:
    logits = torch.randn(64, 33, generator=torch.Generator().manual_seed(0))
    scores = process_logits(logits, SamplingParams(temperature=0.7, top_k=1, top_p=1e-9, min_p=1.0))
    assert torch.equal(scores.argmax(-1), logits.argmax(-1))


def test_greedy_is_the_argmax_of_the_raw_logits() -> None:
    logits = torch.randn(9, 33, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(temperature=0.0, top_k=3, seed=99)
    assert _choose(logits, params, list(range(9))) == logits.argmax(-1).tolist()


def test_a_row_chooses_alike_in_any_company() -> None:
    logits = torch.randn(40, 33, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.02, seed=5)
    positions = [100 + row // 3 for row in range(40)]
    together = _choose(logits, params, positions)
    alone = [_choose(logits[row : row + 1], params, [positions[row]])[0] for row in range(40)]
    backwards = _choose(logits.flip(0), params, positions[::-1])[::-1]
    assert together == alone == backwards


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_suppressed_ids_cannot_be_drawn_below_the_position(temperature: float) -> None:
    logits = torch.zeros(4, 6)
    logits[:, 2] = 50.0
    logits[:, 4] = 25.0
    params = SamplingParams(temperature=temperature)
    before = logits.clone()
    chosen = _choose(logits, params, [8, 9, 10, 11], suppressed_ids=[2, 5], suppressed_below=10)
    assert chosen == [4, 4, 2, 2]
    assert torch.equal(logits, before)


def test_suppression_comes_before_truncation() -> None:
    """top_k = 1 must keep the best of what may be drawn, not the suppressed token."""
    logits = torch.tensor([[1.0, 9.0, 3.0]])
    params = SamplingParams(top_k=1)
    assert _choose(logits, params, [0], suppressed_ids=[1], suppressed_below=1) == [2]
