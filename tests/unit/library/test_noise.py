"""The noise has its golden values, whatever the shape it is asked in."""

from __future__ import annotations

import pytest
import torch

from specgrove.sampling.noise import NoiseRows, gumbel_at, gumbel_row, philox_4x32

ALL_ONES = 0xFFFFFFFF


def _philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    c0, c1, c2, c3 = (torch.tensor(word, dtype=torch.int64) for word in counter)
    return tuple(int(word) for word in philox_4x32((c0, c1, c2, c3), key))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # kat_vectors of Random123 (Salmon et al.), philox 4x32 with 10 rounds.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert _philox(counter, key) == words


GOLDEN = {  # (seed, position): noise of tokens 0..5; a change here changes every sampled answer of every user
    (0, 0): [
        -0.015207427553832531,
        0.956933856010437,
        0.1892639845609665,
        1.7203412055969238,
        0.3908281624317169,
        1.5001227855682373,
    ],
    (1, 17): [
        0.34164944291114807,
        1.4043779373168945,
        -0.22228401899337769,
        -0.29384317994117737,
        0.713296115398407,
        -0.8705775141716003,
    ],
    (2**64 - 1, 2**33 + 5): [
        -0.288002610206604,
        3.2076528072357178,
        0.16943295300006866,
        0.9855504035949707,
        -1.3964542150497437,
        1.7763432264328003,
    ],
}


@pytest.mark.parametrize(("seed", "position"), GOLDEN)
def test_the_noise_has_its_golden_values(seed: int, position: int) -> None:
    assert gumbel_row(seed, position, 6).tolist() == GOLDEN[(seed, position)]


@pytest.mark.parametrize("vocab_size", [1, 3, 4, 5, 1001])
def test_a_row_does_not_depend_on_the_size_of_the_vocabulary(vocab_size: int) -> None:
    row = gumbel_row(5, 9, vocab_size)
    assert row.shape == (vocab_size,)
    assert row.dtype == torch.float32
    assert torch.equal(row, gumbel_row(5, 9, 4096)[:vocab_size])


def test_chosen_entries_are_those_of_the_rows() -> None:
    positions = torch.tensor([[3], [2**40], [7]])
    token_ids = torch.tensor([[0, 1, 49_151, 1_000, 2]])
    chosen = gumbel_at(2**63 + 11, positions, token_ids)
    for place, position in enumerate([3, 2**40, 7]):
        row = gumbel_row(2**63 + 11, position, 49_152)
        assert torch.equal(chosen[place], row[token_ids[0]])


def test_the_noise_is_finite_at_the_ends_of_the_integers() -> None:
    rows = torch.stack([gumbel_row(seed, 1, 50_000) for seed in (0, 1, 2**32, 2**64 - 1)])
    assert bool(torch.isfinite(rows).all())


@pytest.mark.parametrize("bit", [0, 31, 32, 63])
def test_every_bit_of_the_seed_counts(bit: int) -> None:
    assert not torch.equal(gumbel_row(0, 4, 64), gumbel_row(1 << bit, 4, 64))


def test_every_position_has_its_own_row() -> None:
    rows = {tuple(gumbel_row(3, position, 8).tolist()) for position in [*range(200), 2**32, 2**32 + 1]}
    assert len(rows) == 202


def test_kept_rows_are_the_rows() -> None:
    noise = NoiseRows(12, 33)
    for positions in ([5, 6, 6, 7], [7, 8, 8], [9], [9, 10, 10, 11, 9], [4, 5]):
        expected = torch.stack([gumbel_row(12, position, 33) for position in positions])
        assert torch.equal(noise.rows(positions), expected)
