"""Penalties and biases against a reference by hand and `transformers`; and each node counted along its own path."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from specgrove.errors import InvalidInput
from specgrove.sampling.adjustments import LogitAdjuster
from specgrove.sampling.params import SamplingParams
from specgrove.tree import TokenTree
from support.penalty_reference import adjusted_by_hand

VOCAB = 24
IDS = st.integers(0, VOCAB - 1)
PENALTIES = st.floats(-2.0, 2.0, width=32)
PARAMS = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.1, 1.7, 30.0]),
    presence_penalty=st.one_of(st.just(0.0), PENALTIES),
    frequency_penalty=st.one_of(st.just(0.0), PENALTIES),
    logit_bias=st.dictionaries(IDS, st.floats(-100.0, 100.0, width=32), max_size=4).map(
        lambda biases: tuple(sorted(biases.items()))
    ),
)


def _logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def _adjuster(params: SamplingParams, prompt: list[int], output: list[int]) -> LogitAdjuster:
    adjuster = LogitAdjuster.of(params, prompt, output)
    assert adjuster is not None
    return adjuster


@given(
    params=PARAMS.filter(lambda params: params.has_penalties or params.logit_bias),
    prompt=st.lists(IDS, min_size=1, max_size=12),
    output=st.lists(IDS, max_size=12),
    paths=st.lists(st.lists(IDS, min_size=1, max_size=4), max_size=4),
    num_late=st.integers(0, 12),
)
def test_each_node_is_adjusted_by_what_stands_on_its_own_path(
    params: SamplingParams, prompt: list[int], output: list[int], paths: list[list[int]], num_late: int
) -> None:
    tree = TokenTree.from_paths((prompt + output)[-1], paths)
    logits = _logits(tree.num_nodes)
    first = len(output) - min(num_late, len(output))
    adjuster = _adjuster(params, prompt, output[:first])
    adjuster.adjust(logits, tree)  # what is looked at is not counted
    for token_id in output[first:]:
        adjuster.append([token_id])
    adjusted = adjuster.adjust(logits, tree)
    for node in range(tree.num_nodes):
        whole = [*output, *tree.token_path(node)]
        expected = adjusted_by_hand(logits[node].numpy(), params, prompt, whole)
        np.testing.assert_allclose(adjusted[node].numpy(), expected, rtol=1e-5, atol=1e-4)
        # Bit by bit what plain decoding makes of the same tokens.
        root_only = TokenTree.root_only((prompt + whole)[-1])
        alone = _adjuster(params, prompt, whole).adjust(logits[node : node + 1], root_only)
        assert torch.equal(adjusted[node], alone[0])


@given(
    penalty=st.sampled_from([0.3, 0.9, 1.2, 2.0]), prompt=st.lists(IDS, min_size=1), output=st.lists(IDS, max_size=9)
)
def test_repetition_is_that_of_transformers(penalty: float, prompt: list[int], output: list[int]) -> None:
    logits = _logits(1, seed=len(output))
    adjuster = _adjuster(SamplingParams(repetition_penalty=penalty), prompt, output)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    assert torch.equal(adjuster.adjust(logits, TokenTree.root_only((prompt + output)[-1])), theirs)


def test_nothing_asked_is_nothing_made() -> None:
    assert LogitAdjuster.of(SamplingParams(temperature=0.3, top_k=4, min_p=0.1), [1, 2], [3]) is None


def test_the_raw_logits_stay_as_they_are() -> None:
    logits = _logits(1)
    before = logits.clone()
    _adjuster(SamplingParams(logit_bias=((3, 5.0),), presence_penalty=1.0), [1], [3]).adjust(
        logits, TokenTree.root_only(3)
    )
    assert torch.equal(logits, before)


def test_the_prompt_counts_for_repetition_alone() -> None:
    logits = torch.ones(1, VOCAB)
    root = TokenTree.root_only(5)
    only_output = _adjuster(SamplingParams(presence_penalty=1.0, frequency_penalty=1.0), [5, 5], []).adjust(
        logits, root
    )
    assert torch.equal(only_output, logits)
    repeated = _adjuster(SamplingParams(repetition_penalty=2.0), [5, 5], []).adjust(logits, root)
    assert repeated[0, 5] == 0.5


@pytest.mark.parametrize("penalty", [1e-38, 3e38])
def test_the_wildest_repetition_penalty_leaves_numbers(penalty: float) -> None:
    adjusted = _adjuster(SamplingParams(repetition_penalty=penalty), [1, 2, 3], [4]).adjust(
        _logits(1), TokenTree.root_only(4)
    )
    assert torch.isfinite(adjusted).all()


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_penalty": NAN}, "repetition_penalty"),
        ({"repetition_penalty": INF}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"presence_penalty": NAN}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": INF}, "frequency_penalty"),
        ({"logit_bias": ((3, 100.5),)}, "logit_bias"),
        ({"logit_bias": ((3, NAN),)}, "logit_bias"),
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, "logit_bias"),
        ({"logit_bias": tuple((n, 1.0) for n in range(301))}, "logit_bias"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SamplingParams(**fields)  # type: ignore[arg-type]
    assert caught.value.field == name
    assert name in caught.value.message
