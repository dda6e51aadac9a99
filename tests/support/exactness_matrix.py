"""A cell of the exactness matrix: an engine under many conditions at once, its tokens, and what really happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from specgrove.errors import Overloaded
from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SamplingParams, SpeculationOptions
from specgrove_verifier.budget import MeasuredBudget
from specgrove_verifier.cost_curve import CostCurve
from support.engine_stand import Answer, InProcessDrafter, Running, Stand, knowing_trees, random_trees, running_stand
from support.scheduler_watch import Watch, held
from support.tiny_models import VOCAB_SIZE

BLOCK_SIZE = 4
MAX_TOKENS = 13
# N blocks + {-1, 0, 1}. In either order the first two are long, fit together at first, and outgrow the few blocks;
# the very first has one token beyond its blocks.
LENGTHS = (33, 31, 32, 3, 12, 5, 13, 4, 11)
_PRIORITIES = (-9, -8, 0, 3, 5, -1, 2, 4, -2)
_ALIKE, _ALIKE_LATER = (33, 32, 5, 4, 3), (13, 12, 11)
_FEW_ROWS = 8
_FEW_TOKENS = (max(LENGTHS) + MAX_TOKENS) * 3 // 2 // BLOCK_SIZE * BLOCK_SIZE  # blocks for a session and a half
_MAX_NODES = 5

# Places of prompts that are special.
_PLAIN = (0,)  # asks for no drafts: long enough here to be in the way of the second one
_RESUMED = (3, 5, 8)  # comes with output of an earlier owner
_OVERDUE = (6, 7)  # had to wait for longer than anybody may
_NUM_COMMITTED, _LONG_AGO_S = 5, 10_000.0
_OFF = SpeculationOptions(is_enabled=False)

SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=0.9, seed=2**40 + 3),
    "truncated": SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02, seed=3),
}
_LIMITS: dict[str, dict[str, int]] = {
    "tiny": {"max_step_rows": _FEW_ROWS, "kv_tokens": _FEW_TOKENS},
    "few rows": {"max_step_rows": _FEW_ROWS},
    "few blocks": {"kv_tokens": _FEW_TOKENS},
    "roomy": {},
}


def prompts() -> list[list[int]]:
    """Of `LENGTHS`. Some begin alike, some go on alike after another beginning: their blocks must not be mistaken. The
    two that crowd each other out have nothing in common, or they would share blocks."""
    random = Random(5)
    common = [random.randrange(3, VOCAB_SIZE) for _ in range(5 * BLOCK_SIZE)]
    made = []
    for length in LENGTHS:
        own = [random.randrange(3, VOCAB_SIZE) for _ in range(length)]
        if length in _ALIKE:
            own = common + own
        elif length in _ALIKE_LATER:
            own = own[:BLOCK_SIZE] + common[BLOCK_SIZE:]
        made.append(own[:length])
    return made


@dataclass(frozen=True, slots=True)
class Case:
    """What holds at once. The suite says which values there are."""

    backend: str
    limits: str
    prefix: str
    order: str
    pacing: str
    budget: str
    places: str
    start: str
    decision: str
    drafter: str

    @property
    def sampling(self) -> SamplingParams:
        return SAMPLINGS[self.decision]

    @property
    def settings(self) -> dict[str, Any]:
        return {
            **_LIMITS[self.limits],
            "block_size": BLOCK_SIZE,
            "max_nodes": _MAX_NODES,
            "prefix_cache": "off" if self.prefix == "off" else "on",
            "pacing": self.pacing,
            "budget": self.budget,
            "cost_cache": "",
            "max_sessions": 2 if self.places == "two" else 64,
            "drafters_per_session": 2,
        }

    @property
    def ranking(self) -> list[int]:
        """Places of the prompts, whoever is to be let in first first."""
        places = list(range(len(LENGTHS)))
        return sorted(places, key=_PRIORITIES.__getitem__) if self.order == "priorities" else places

    def drafters(self, truths: Sequence[Sequence[int]]) -> list[InProcessDrafter]:
        knowing, bad = knowing_trees(truths, right_len=3), random_trees(VOCAB_SIZE)
        members = {"none": [], "random": [bad], "knowing": [knowing], "merged": [bad, knowing]}[self.drafter]
        return [InProcessDrafter(propose, number) for number, propose in enumerate(members, start=1)]


def solo(loaded: LoadedModel, sampling: SamplingParams) -> list[list[int]]:
    """Plain decoding: each prompt alone, nothing drafted, nothing left in the cache by others."""
    with running_stand(loaded, prefix_cache="off", max_nodes=0, block_size=BLOCK_SIZE) as stand:
        return [stand.generate(prompt, MAX_TOKENS, sampling=sampling).token_ids for prompt in prompts()]


def check(case: Case, loaded: LoadedModel, truth: Sequence[Sequence[int]]) -> None:
    """All sessions of `case` at once say `truth`, what `case` names has happened, and nothing is left behind."""
    sequences = [[*prompt, *output] for prompt, output in zip(prompts(), truth, strict=True)]
    with running_stand(loaded, *case.drafters(sequences), **case.settings) as stand:
        if isinstance(stand.engine._budget, MeasuredBudget):
            # As if rows cost nothing: trees are granted at first, on whatever machine. The steps teach it better.
            stand.engine._budget._curve = CostCurve([(1, 0.01), (1024, 0.01)])
        if case.prefix == "warm":
            for place in reversed(case.ranking):
                stand.generate(prompts()[place], 1, sampling=case.sampling, speculation=_OFF)
        stand.settle()
        watch, num_preempted = Watch.over(stand), stand.num_preemptions
        running = _start_all(case, stand, truth)
        answers = [one.answer() for one in running]
        stand.assert_empty()
        cuts = [len(one.generation.request.committed_token_ids) for one in running]
        said = [[*output[:cut], *answer.token_ids] for output, cut, answer in zip(truth, cuts, answers, strict=True)]
        assert said == list(truth)
        keys = [one.generation.key for one in running]
        assert (stand.num_preemptions > num_preempted) == (case.limits in ("tiny", "few blocks"))
        _check_rows(case, watch, keys)
        _check_prefixes(case, watch, keys)
        _check_places(case, watch, keys)
        _check_drafts(case, watch, answers)


def _start_all(case: Case, stand: Stand, truth: Sequence[Sequence[int]]) -> list[Running]:
    def start(place: int) -> Running:
        is_resumed = case.start == "resumed" and place in _RESUMED
        return stand.start(
            prompts()[place],
            MAX_TOKENS,
            sampling=case.sampling,
            session_id=f"session {place}",
            priority=_PRIORITIES[place] if case.order == "priorities" else 0,
            committed=truth[place][:_NUM_COMMITTED] if is_resumed else (),
            speculation=_OFF if place in _PLAIN else SpeculationOptions(),
        )

    overdue = _OVERDUE if case.places == "overdue" else ()
    with held(stand):
        running = [start(place) for place in range(len(LENGTHS))]
        for place in overdue:
            running[place].generation.arrived_s -= _LONG_AGO_S
    for place in overdue:  # told to come again, they do
        with pytest.raises(Overloaded):
            running[place].answer()
        running[place] = start(place)
    assert stand.sample("specgrove:admission_rejections_total", reason="waiting_time") == len(overdue)
    return running


def _check_rows(case: Case, watch: Watch, keys: Sequence[int]) -> None:
    most_rows = max(sum(rows.num_chain + rows.num_nodes for rows in step) for step in watch.steps)
    assert watch.num_starving_steps == 0
    if case.limits in ("tiny", "few rows"):
        assert most_rows <= _FEW_ROWS
        assert watch.num_shared_steps() > 0
        if case.prefix != "warm":  # there the first one has a single row left
            assert watch.num_chunks(keys[0]) > 1
            assert watch.num_overtaking_steps() > 0
    else:
        assert most_rows > _FEW_ROWS


def _check_prefixes(case: Case, watch: Watch, keys: Sequence[int]) -> None:
    first = watch.rows_of(keys[case.ranking[0]])[0]
    if case.prefix == "off":
        assert not any(place.num_hit for place in watch.places)
    elif case.prefix == "cold":
        assert first.cached_len == 0
        assert any(place.num_hit for place in watch.places)
    else:
        assert first.num_chain == 1, "the hit leaves one row"
        assert first.cached_len == LENGTHS[case.ranking[0]] - 1
    if case.prefix == "warm" and case.limits in ("few rows", "roomy"):  # nothing is evicted
        hits = {place.key: (place.num_hit, place.num_tokens) for place in watch.first_places}
        for length, key in zip(LENGTHS, keys, strict=True):
            assert hits[key][0] >= (length - 1) // BLOCK_SIZE * BLOCK_SIZE


def _check_places(case: Case, watch: Watch, keys: Sequence[int]) -> None:
    if case.places == "two":
        assert watch.most_running == 2
        assert watch.most_waiting > 0
    if case.places != "overdue":
        assert [place.key for place in watch.first_places] == [keys[place] for place in case.ranking]


def _check_drafts(case: Case, watch: Watch, answers: Sequence[Answer]) -> None:
    if case.pacing == "together" or case.budget == "fixed":  # else drafts may come to be too dear for turns
        assert (max(watch.num_left_out) > 0) == (case.pacing == "in_turns")
    num_drafted = sum(answer.stats.num_draft_tokens for answer in answers)
    num_accepted = sum(answer.stats.num_accepted_tokens for answer in answers)
    assert not any(answers[place].stats.num_drafts for place in _PLAIN)
    assert len(watch.grants) > 0
    assert (num_drafted > 0) == (case.drafter != "none")
    if case.drafter in ("knowing", "merged"):
        assert num_accepted > 0
    if case.drafter in ("random", "merged"):
        assert num_accepted < num_drafted
