"""Requests with options of all kinds, drawn by hypothesis, and the engine's answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SamplingParams, SpeculationOptions
from specgrove.sampling.rules import Rule
from support.engine_stand import Answer, InProcessDrafter, Running, Stand, running_stand
from support.tiny_models import VOCAB_SIZE, text_of

_IDS = st.integers(3, VOCAB_SIZE - 1)
_BIASES = st.dictionaries(_IDS, st.floats(-100.0, 100.0, width=32), max_size=5)

SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.6]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 0, 12]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.6, 1.3, 3.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -2.0, 0.7, 2.0]),
    logit_bias=_BIASES.map(lambda biases: tuple(sorted(biases.items()))),
)


@dataclass(frozen=True, slots=True)
class Mix:
    """One request: a prompt and everything that may be asked of its answer."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int = 14
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    rule: Rule = Rule.COUPLED
    top_logprobs: int | None = None
    wants_prompt_logprobs: bool = False

    def start(self, stand: Stand, committed: Sequence[int] = ()) -> Running:
        return stand.start(
            self.prompt,
            self.max_tokens,
            sampling=self.sampling,
            committed=committed,
            speculation=SpeculationOptions(rule=self.rule),
            min_tokens=min(self.min_tokens, self.max_tokens),
            stop_token_ids=self.stop_token_ids,
            stop_strings=self.stop_strings,
            top_logprobs=self.top_logprobs,
            wants_prompt_logprobs=self.wants_prompt_logprobs,
        )


def mixes(rules: Sequence[Rule] = (Rule.COUPLED, Rule.NAIVE)) -> st.SearchStrategy[Mix]:
    return st.builds(
        Mix,
        prompt=st.lists(_IDS, min_size=1, max_size=18).map(tuple),
        sampling=SAMPLINGS,
        max_tokens=st.integers(1, 16),
        min_tokens=st.sampled_from([0, 0, 3]),
        stop_token_ids=st.lists(_IDS, max_size=3).map(tuple),
        stop_strings=st.lists(_IDS, max_size=2).map(lambda ids: tuple(text_of([token_id]) for token_id in ids)),
        rule=st.sampled_from(rules),
        top_logprobs=st.sampled_from([None, 0, 4, 20]),
        wants_prompt_logprobs=st.booleans(),
    )


def crowds(rules: Sequence[Rule] = (Rule.COUPLED, Rule.NAIVE)) -> st.SearchStrategy[list[Mix]]:
    """A few requests at once, told apart by their prompts' first token."""
    return st.lists(mixes(rules), min_size=1, max_size=4).map(
        lambda crowd: [replace(mix, prompt=(3 + n, *mix.prompt)) for n, mix in enumerate(crowd)]
    )


def alone(target: LoadedModel, crowd: Sequence[Mix]) -> list[Answer]:
    """The answers of plain decoding, one request after the other."""
    with running_stand(target) as stand:
        return [mix.start(stand).answer() for mix in crowd]


def together(target: LoadedModel, crowd: Sequence[Mix], *drafters: InProcessDrafter, **settings: Any) -> list[Answer]:
    """The answers to all requests at once, whatever the drafters say."""
    with running_stand(target, *drafters, **settings) as stand:
        answers = [running.answer() for running in [mix.start(stand) for mix in crowd]]
        stand.assert_empty()
        return answers


def truths(crowd: Sequence[Mix], answers: Sequence[Answer]) -> list[list[int]]:
    """Whole sequences, for drafters that know them."""
    return [[*mix.prompt, *answer.token_ids] for mix, answer in zip(crowd, answers, strict=True)]
