"""Weights of SSMs that speak as one: equal at first, then what the target's choices say."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.trees.mixing import MAX_TRIALS, Mixing
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal
from support.drafter_fakes import make_job

GREEDY_JOB = make_job([5, 6, 7])
MSS_JOB = replace(GREEDY_JOB, sampling=SamplingParams(temperature=1.0), rule=Rule.MSS)


def proposal_of(*levels: dict[int, tuple[float, ...]]) -> Proposal:
    """Each level hangs under the first token of the one above: token -> what each model gives it."""
    proposal, parent = Proposal(), BELOW_ROOT
    for level in levels:
        nodes = [proposal.add(parent, token, -1.0, shares) for token, shares in level.items()]
        parent = nodes[0]
    return proposal


def weights(mixing: Mixing, job: DraftJob = GREEDY_JOB, depth: int = 1) -> list[float]:
    return [math.exp(weight) for weight in mixing.log_weights(job.estimate_kind, depth)]


@pytest.mark.parametrize("num_models", [1, 2, 5])
def test_models_count_alike_before_anything_is_known(num_models: int) -> None:
    assert weights(Mixing(num_models)) == pytest.approx([1 / num_models] * num_models)


def test_weights_come_to_the_mixture_that_the_choices_were_drawn_from() -> None:
    random, mixing = Random(1), Mixing(2)
    laws = ((0.7, 0.2), (0.1, 0.6))  # of tokens 1 and 2 by model; the rest is anything else
    for _ in range(4000):
        law = laws[0] if random.random() < 0.8 else laws[1]
        token = random.choices([1, 2, 99], [*law, 1 - sum(law)])[0]
        shares = {token_id: (laws[0][place], laws[1][place]) for place, token_id in enumerate((1, 2))}
        mixing.learn(GREEDY_JOB, proposal_of(shares), [token])
    assert weights(mixing)[0] == pytest.approx(0.8, abs=0.06)


def test_every_depth_and_kind_has_weights_of_its_own() -> None:
    mixing = Mixing(2)
    levels = proposal_of({1: (0.9, 0.1)}, {2: (0.1, 0.9)})
    for _ in range(50):
        mixing.learn(GREEDY_JOB, levels, [1, 2, 3])
    assert weights(mixing, depth=1)[0] > 0.7
    assert weights(mixing, depth=2)[1] > 0.7
    assert weights(mixing, depth=3) == pytest.approx([0.5, 0.5])
    sampled = replace(GREEDY_JOB, sampling=SamplingParams(temperature=1.0))
    assert weights(mixing, sampled) == pytest.approx([0.5, 0.5])


def test_a_choice_that_nobody_showed_speaks_for_the_model_that_was_less_sure() -> None:
    mixing = Mixing(2)
    for _ in range(50):
        mixing.learn(GREEDY_JOB, proposal_of({1: (0.95, 0.2)}), [9])
    assert weights(mixing)[1] > 0.7


def test_drawn_children_teach_nothing() -> None:
    mixing = Mixing(2)
    mixing.learn(MSS_JOB, proposal_of({1: (0.9, 0.1)}), [1])
    assert weights(mixing) == pytest.approx([0.5, 0.5])


def test_sessions_whose_children_are_drawn_take_what_others_have_taught() -> None:
    mixing = Mixing(2)
    mixing.learn(GREEDY_JOB, proposal_of({1: (0.9, 0.1)}), [1])
    assert MSS_JOB.estimate_kind is None
    assert weights(mixing, MSS_JOB) == weights(mixing) != pytest.approx([0.5, 0.5])


def test_nonsense_stays_bounded_and_old_evidence_fades() -> None:
    mixing = Mixing(2)
    for _ in range(int(2 * MAX_TRIALS)):
        mixing.learn(GREEDY_JOB, proposal_of({1: (1.0, 0.0)}), [1])
    assert 0.0 < weights(mixing)[1] < 0.05
    for _ in range(int(2 * MAX_TRIALS)):
        mixing.learn(GREEDY_JOB, proposal_of({1: (0.0, 1.0)}), [1])
    assert weights(mixing)[1] > 0.9
    mixing.forget()
    assert weights(mixing) == pytest.approx([0.5, 0.5])


def test_who_counts_as_having_proposed_a_node() -> None:
    proposal = proposal_of({1: (0.6, 0.1), 2: (0.3, 0.2), 3: (0.01, 0.2)})
    assert [proposal.sources(node) for node in range(3)] == [0b01, 0b11, 0b10]
    single = Proposal()
    single.add(BELOW_ROOT, 1, -0.1)
    assert single.sources(0) == 1
