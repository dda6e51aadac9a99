"""Requests as the engine gets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgrove.sampling.params import SamplingParams, SpeculationOptions, StopConditions
from specgrove_verifier.generation import GenerationRequest

GREEDY = SamplingParams(temperature=0.0)


def make_request(
    prompt: Sequence[int],
    max_tokens: int = 24,
    *,
    sampling: SamplingParams = GREEDY,
    committed: Sequence[int] = (),
    speculation: SpeculationOptions = SpeculationOptions(),
    session_id: str = "session",
    epoch: int = 1,
    priority: int = 0,
    top_logprobs: int | None = None,
    wants_prompt_logprobs: bool = False,
    **stop: Any,
) -> GenerationRequest:
    return GenerationRequest(
        session_id,
        epoch,
        "request",
        tuple(prompt),
        tuple(committed),
        sampling,
        StopConditions(max_tokens, **{"ignore_eos": True, **stop}),
        speculation,
        priority,
        top_logprobs,
        wants_prompt_logprobs,
    )
