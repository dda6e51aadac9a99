"""The exactness matrix: every attention backend under every scheduler feature says what plain decoding says.

Each case is one engine under one value of every factor below, with nine sessions at once whose prompts have N blocks
+ {-1, 0, 1} tokens; some of them ask for no drafts. Its tokens must equal the truth: each session alone, nothing
drafted, a cold cache, plain torch; which for float32 is also what `transformers` generates. Equality is exact and needs
no tie rule: no choice of the truth is a near tie. A case fails, too, if what it names did not happen or a block leaked.

    tiny limits     every pair of two values of two factors, all with an 8-token budget and blocks for one and a half
                    sessions: prompts in chunks that are shared out, forced preemption
    other limits    every pair of a value with a budget of 8 alone, few blocks alone, and room for all
    slow            every triple under tiny limits; the Triton kernels, interpreted, with a selection of values
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

import pytest
import torch

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.noise import NoiseRows
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.target_choice import process_logits
from support.attention_backends import AVAILABLE, Backends
from support.exactness import TIE_GAP
from support.exactness_matrix import BLOCK_SIZE, LENGTHS, MAX_TOKENS, SAMPLINGS, Case, check, prompts, solo
from support.pairwise import Row, covering_rows
from support.tiny_models import own_greedy, own_model

FACTORS: dict[str, tuple[str, ...]] = {
    # lean and transformers: plain torch attention of either decoder; windows: Gemma 2 (windows and soft caps); paged:
    # the kernels' references; recorded: decode steps replayed; fp16, int8: packed weights, compiled operators or not
    "backend": tuple(name for name in AVAILABLE if name != "triton"),
    # no prefix cache; an empty one; one that knows every prompt, so that the first session has one row left
    "prefix": ("off", "cold", "warm"),
    "order": ("arrival", "priorities"),
    "pacing": ("together", "in_turns"),
    "budget": ("fixed", "measured"),
    # two: only so many run, the others wait; overdue: some waited too long, are refused, and come again
    "places": ("all", "two", "overdue"),
    # resumed: some come with output that an earlier owner committed
    "start": ("fresh", "resumed"),
    "decision": ("greedy", "sampled", "truncated"),
    # knowing: right for three tokens, among wrong siblings; random: bad; merged: trees of both in one
    "drafter": ("none", "random", "knowing", "merged"),
}
TINY, OTHERS = ("tiny",), ("few rows", "few blocks", "roomy")
INTERPRETED: dict[str, tuple[str, ...]] = {
    **FACTORS,
    "backend": ("triton",),
    "places": ("all", "two"),
    "decision": ("greedy", "sampled"),
    "drafter": ("none", "merged"),
}


def is_possible(row: Row) -> bool:
    """Turns are taken while others' drafts are made: without drafters there are none to take."""
    return not (row.get("pacing") == "in_turns" and row.get("drafter") == "none")


def _params(rows: Sequence[Row], *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(Case(**row), id="-".join(row.values()), marks=marks) for row in rows]


TINY_ROWS = covering_rows({**FACTORS, "limits": TINY}, is_possible=is_possible)
OTHER_ROWS = covering_rows({**FACTORS, "limits": OTHERS}, about="limits", is_possible=is_possible)
TRIPLE_ROWS = covering_rows({**FACTORS, "limits": TINY}, strength=3, is_possible=is_possible)
INTERPRETED_ROWS = covering_rows({**INTERPRETED, "limits": TINY}, is_possible=is_possible)
# The one that is not slow has the most in it.
TRITON_ROWS = sorted(INTERPRETED_ROWS, key=lambda row: (row["prefix"], row["drafter"]) != ("warm", "merged"))
TRITON_PARAMS = [*_params(TRITON_ROWS[:1]), *_params(TRITON_ROWS[1:], pytest.mark.slow)]

Truth = Callable[[str, str], list[list[int]]]  # backend, decision -> outputs


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Backends:
    return Backends(tmp_path_factory.mktemp("backends"))


@pytest.fixture(scope="module")
def truth(backends: Backends) -> Truth:
    """The outputs of all prompts, each run alone; decoded once."""
    known: dict[tuple[str, str], list[list[int]]] = {}

    def outputs(backend: str, decision: str) -> list[list[int]]:
        key = (backends.truth_of(backend), decision)
        if key not in known:
            known[key] = solo(backends[key[0]].loaded, SAMPLINGS[decision])
        return known[key]

    return outputs


def _check(case: Case, backends: Backends, truth: Truth) -> None:
    backend, expected = backends[case.backend], truth(case.backend, case.decision)
    num_before = backend.num_uses() if backend.num_uses else 0
    check(case, backend.loaded, expected)
    assert backend.num_uses is None or backend.num_uses() > num_before


@pytest.mark.parametrize("case", _params(TINY_ROWS))
def test_no_pair_of_conditions_changes_a_token_under_tiny_limits(case: Case, backends: Backends, truth: Truth) -> None:
    _check(case, backends, truth)


@pytest.mark.parametrize("case", _params(OTHER_ROWS))
def test_no_condition_changes_a_token_under_any_limits(case: Case, backends: Backends, truth: Truth) -> None:
    _check(case, backends, truth)


@pytest.mark.slow
@pytest.mark.parametrize("case", _params(TRIPLE_ROWS))
def test_no_triple_of_conditions_changes_a_token(case: Case, backends: Backends, truth: Truth) -> None:
    _check(case, backends, truth)


if "triton" in AVAILABLE:

    @pytest.mark.parametrize("case", TRITON_PARAMS)
    def test_no_pair_of_conditions_changes_a_token_on_interpreted_kernels(
        case: Case, backends: Backends, truth: Truth
    ) -> None:
        _check(case, backends, truth)


@pytest.mark.parametrize("backend", ["lean", "windows"])
def test_the_truth_is_what_transformers_generates(backends: Backends, truth: Truth, backend: str) -> None:
    own = own_model(backends.folders["gemma2" if backend == "windows" else "llama"])
    assert truth(backend, "greedy") == [own_greedy(own, prompt, MAX_TOKENS) for prompt in prompts()]


@pytest.mark.parametrize("decision", SAMPLINGS)
@pytest.mark.parametrize("backend", sorted({"lean", "windows", "fp16", "int8"} & {*AVAILABLE}))
def test_no_choice_of_the_truth_is_a_near_tie(backends: Backends, truth: Truth, backend: str, decision: str) -> None:
    """So no case needs the tie rule, and equality says something: the prompts' outputs are all different."""
    outputs, loaded = truth(backend, decision), backends[backend].loaded
    assert len({tuple(output) for output in outputs}) == len(LENGTHS)
    for prompt, output in zip(prompts(), outputs, strict=True):
        scores = _scores(loaded, SAMPLINGS[decision], prompt, output)
        best = scores.topk(2, dim=-1)
        assert best.indices[:, 0].tolist() == output
        assert float((best.values[:, 0] - best.values[:, 1]).min()) > 5 * TIE_GAP


def _scores(
    loaded: LoadedModel, sampling: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> torch.Tensor:  # float32 [len(output), V]
    """What the target chose each token of `output` by, read off one chain."""
    cache = loaded.new_cache(max_tokens=len(prompt) + len(output))
    chain, first = [*prompt, *output[:-1]], len(prompt) - 1
    places = range(len(chain))
    rows = SequenceRows(cache.new_sequence(), chain, places, range(-1, len(chain) - 1), [at >= first for at in places])
    logits = PackedForward(loaded, cache).run([rows])
    if sampling.is_greedy:
        return logits
    noise = NoiseRows(sampling.seed, loaded.vocab_size).rows([at + 1 for at in places[first:]])
    return process_logits(logits, sampling) + noise


def test_prompts_end_before_at_and_after_the_edges_of_blocks() -> None:
    assert sorted(LENGTHS) == [num * BLOCK_SIZE + extra for num in (1, 3, 8) for extra in (-1, 0, 1)]


def _pairs_of(factors: Mapping[str, Sequence[str]]) -> set[tuple[str, str, str, str]]:
    """(factor, value, other factor, other value), all that can be."""
    return {
        (one, value, other, other_value)
        for one, other in combinations(factors, 2)
        for value, other_value in product(factors[one], factors[other])
        if is_possible({one: value, other: other_value})
    }


@pytest.mark.parametrize(
    ("factors", "rows"),
    [
        pytest.param(FACTORS, TINY_ROWS, id="tiny"),
        pytest.param(INTERPRETED, INTERPRETED_ROWS, id="interpreted"),
    ],
)
def test_the_cases_hold_every_pair(factors: Mapping[str, Sequence[str]], rows: Sequence[Row]) -> None:
    held = {(one, row[one], other, row[other]) for row in rows for one, other in combinations(factors, 2)}
    assert held == _pairs_of(factors)
    assert len(rows) < 50


def test_the_cases_hold_every_value_under_every_limit() -> None:
    held = {(row["limits"], factor, row[factor]) for row in OTHER_ROWS for factor in FACTORS}
    assert held == {(limits, factor, value) for limits in OTHERS for factor in FACTORS for value in FACTORS[factor]}


def test_the_slow_cases_hold_every_triple() -> None:
    names = list(combinations(FACTORS, 3))
    held = {tuple((name, row[name]) for name in three) for row in TRIPLE_ROWS for three in names}
    every = {
        tuple(zip(three, values, strict=True))
        for three in names
        for values in product(*(FACTORS[name] for name in three))
        if is_possible(dict(zip(three, values, strict=True)))
    }
    assert held == every
