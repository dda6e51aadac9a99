"""The noise is standard Gumbel, and argmax(log p + noise) is a draw from p."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from specgrove.sampling.noise import NoiseRows, gumbel_at, gumbel_row
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.target_choice import choose_tokens, process_logits

EULER_GAMMA = 0.5772156649015329
LEVEL = 1e-4  # seeds are fixed: a test either always passes or always fails


def _noise(seed: int, num_rows: int = 40, vocab_size: int = 5000) -> torch.Tensor:
    return torch.cat([gumbel_row(seed, position, vocab_size) for position in range(num_rows)]).double()


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_the_noise_has_the_mean_variance_and_law_of_gumbel(seed: int) -> None:
    noise = _noise(seed)
    error = math.sqrt(math.pi**2 / 6 / noise.numel())
    assert abs(float(noise.mean()) - EULER_GAMMA) < 4 * error
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.03
    assert stats.kstest(noise.numpy(), "gumbel_r").pvalue > LEVEL


def test_tokens_positions_and_seeds_are_independent() -> None:
    noise = torch.stack([gumbel_row(seed, position, 2000) for seed in (5, 6) for position in (8, 9)])
    correlations = torch.corrcoef(torch.cat([noise, noise.roll(1, dims=1)]).double())
    off_diagonal = correlations - torch.eye(8)
    assert float(off_diagonal.abs().max()) < 4.5 / math.sqrt(2000)


def _chi_square(counts: torch.Tensor, law: torch.Tensor) -> float:
    expected = law.double() * counts.sum()
    return float(stats.chisquare(counts.double().numpy(), (expected * counts.sum() / expected.sum()).numpy()).pvalue)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_draws_at_many_positions_and_seeds_have_the_law(temperature: float) -> None:
    law = torch.tensor([0.02, 0.08, 0.3, 0.2, 0.25, 0.15])
    params = SamplingParams(temperature=temperature)
    log_probs = process_logits(law.log().unsqueeze(0), params)
    positions = torch.arange(400).unsqueeze(1)
    counts = torch.zeros(6)
    for seed in range(50):
        noise = gumbel_at(seed, positions, torch.arange(6).unsqueeze(0))  # [400, 6]
        counts += torch.bincount((log_probs + noise).argmax(-1), minlength=6)
    assert _chi_square(counts, log_probs.softmax(-1)[0]) > LEVEL


def test_the_sampler_draws_the_truncated_law() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 12, generator=generator) * 1.5
    params = SamplingParams(temperature=0.9, top_k=7, top_p=0.92, min_p=0.02, seed=77)
    law = process_logits(logits, params).softmax(-1)[0]
    rows = logits.expand(500, 12)
    noise = NoiseRows(params.seed, 12)
    counts = torch.zeros(12)
    for start in range(0, 4_000, 500):
        chosen = choose_tokens(rows, params, range(start, start + 500), noise)
        counts += torch.bincount(torch.tensor(chosen), minlength=12)
    kept = law > 0
    assert not counts[~kept].any()
    assert _chi_square(counts[kept], law[kept]) > LEVEL


def test_draws_at_neighbouring_positions_are_independent() -> None:
    law = torch.tensor([0.5, 0.3, 0.2])
    positions = torch.arange(20_001).unsqueeze(1)
    chosen = (law.log() + gumbel_at(3, positions, torch.arange(3).unsqueeze(0))).argmax(-1)
    pairs = torch.bincount(chosen[:-1] * 3 + chosen[1:], minlength=9)
    assert _chi_square(pairs[[0, 1, 2, 3, 4, 5, 6, 7, 8]], torch.outer(law, law).flatten()) > LEVEL
