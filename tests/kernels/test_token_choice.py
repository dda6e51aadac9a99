"""Token choice against the sampler of the library: the same noise bit by bit, the same tokens."""

from __future__ import annotations

import pytest
import torch

from specgrove.sampling.noise import NoiseRows, Stream, gumbel_row, philox_4x32
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.target_choice import choose_tokens, process_logits
from specgrove_kernels import token_choice
from specgrove_kernels.backend import KernelSet, has_triton

SEEDS = [0, 1, 7, 2**40 + 3, 2**63 + 5, 2**64 - 1]
POSITIONS = [0, 1, 99, 2**32 - 1, 2**33 + 1, 12345]
VOCABS = [1, 3, 4, 5, 1023, 1024, 1025, 4099]


def _signed(seeds: list[int]) -> torch.Tensor:
    return torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in seeds])


def test_the_words_are_those_of_the_library() -> None:
    words = token_choice.philox_words(_signed(SEEDS), torch.tensor(POSITIONS), 11)
    for row, (seed, position) in enumerate(zip(SEEDS, POSITIONS, strict=True)):
        key = (seed & 0xFFFFFFFF, seed >> 32)
        counters = [(group, position & 0xFFFFFFFF, position >> 32, int(Stream.SHARED)) for group in range(3)]
        expected = [word for counter in counters for word in philox_4x32(counter, key)]
        assert words[row].tolist() == expected[:11]


@pytest.mark.parametrize("stream", [Stream.SHARED, Stream.OWN])
def test_the_noise_is_that_of_the_library(stream: Stream) -> None:
    noise = token_choice.gumbel(token_choice.philox_words(_signed(SEEDS), torch.tensor(POSITIONS), 1027, stream))
    for row, (seed, position) in enumerate(zip(SEEDS, POSITIONS, strict=True)):
        assert torch.equal(noise[row], gumbel_row(seed, position, 1027, stream=stream))


if has_triton():

    @pytest.mark.parametrize("vocab_size", VOCABS)
    def test_the_device_makes_the_same_words(vocab_size: int) -> None:
        from specgrove_kernels.philox_triton import philox_words

        arguments = (_signed(SEEDS), torch.tensor(POSITIONS), vocab_size, token_choice.SHARED_STREAM)
        assert torch.equal(philox_words(*arguments), token_choice.philox_words(*arguments))


@pytest.mark.parametrize("vocab_size", VOCABS)
@pytest.mark.parametrize("stream", [Stream.SHARED, Stream.OWN])
def test_tokens_are_those_of_the_sampler(kernels: KernelSet, vocab_size: int, stream: Stream) -> None:
    temperatures = [0.0, 0.01, 0.7, 1.0, 1.3, 100.0]
    logits = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 3
    chosen = kernels.choose_tokens(
        logits, torch.tensor(temperatures), _signed(SEEDS), torch.tensor(POSITIONS), stream=stream
    )
    expected = [
        choose_tokens(
            logits[row : row + 1],
            SamplingParams(temperature=temperature, seed=seed),
            [position],
            NoiseRows(seed, vocab_size, stream=stream),
        )[0]
        for row, (temperature, seed, position) in enumerate(zip(temperatures, SEEDS, POSITIONS, strict=True))
    ]
    assert chosen.tolist() == expected
    assert chosen.dtype == torch.int64


def test_processed_scores_go_in_with_temperature_one(kernels: KernelSet) -> None:
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=11)
    logits = torch.randn(17, 1500, generator=torch.Generator().manual_seed(3)) * 2
    positions = list(range(100, 117))
    chosen = kernels.choose_tokens(
        process_logits(logits, params), torch.ones(17), torch.full((17,), 11), torch.tensor(positions)
    )
    assert chosen.tolist() == choose_tokens(logits, params, positions, NoiseRows(11, 1500))


def test_greedy_takes_the_lowest_of_equals(kernels: KernelSet) -> None:
    logits = torch.zeros(4, 3000)
    logits[0, [2999, 2000]] = 5.0
    logits[1, [1025, 1024, 7, 6]] = 5.0
    logits[2] = -5.0
    logits[3, :2500] = float("-inf")
    zeros = torch.zeros(4, dtype=torch.int64)
    assert kernels.choose_tokens(logits, torch.zeros(4), zeros, zeros).tolist() == [2000, 6, 0, 2500]


def test_a_removed_token_is_never_drawn(kernels: KernelSet) -> None:
    logits = torch.full((16, 1030), float("-inf"))
    logits[:, [5, 1029]] = 0.0
    chosen = kernels.choose_tokens(logits, torch.ones(16), torch.arange(16), torch.arange(16))
    assert set(chosen.tolist()) == {5, 1029}


def test_a_row_chooses_alike_in_any_company(kernels: KernelSet) -> None:
    logits = torch.randn(5, 1030, generator=torch.Generator().manual_seed(8))
    temperatures, seeds, positions = torch.ones(5), torch.arange(5), torch.arange(5) * 9
    together = kernels.choose_tokens(logits, temperatures, seeds, positions).tolist()
    alone = [
        int(kernels.choose_tokens(logits[row, None], temperatures[:1], seeds[row, None], positions[row, None]))
        for row in range(5)
    ]
    assert together == alone
