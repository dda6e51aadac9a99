"""Logprobs of a step, for the generations that asked: of the tokens that were kept, and of prompts while they are read.

prompt chain   t0 t1 t2 t3 │ root      rows t0..t2 score t1..t3 (`Scheduled.scored`), in the steps that read them
tree                           └─ a    rows root, a give the kept tokens
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specgrove.outcome import TokenLogprobs
from specgrove.sampling.logprobs import token_logprobs
from specgrove_verifier.features import TargetOutputs
from specgrove_verifier.generation import Generation
from specgrove_verifier.scheduler import Scheduled


def score_prompts(batch: Sequence[Scheduled], outputs: TargetOutputs) -> TargetOutputs:
    """`outputs` without the rows that score prompts, whose logprobs are now with their generations."""
    if not any(scheduled.scored for scheduled in batch):
        return outputs
    read: set[int] = set()
    first = 0
    for scheduled in batch:
        generation, num_scored = scheduled.generation, len(scheduled.scored)
        if num_scored:
            start = generation.first_unscored + 1
            token_ids = generation.tokens[start : start + num_scored]
            rows = outputs.logits[first : first + num_scored]
            generation.score(token_logprobs(rows, token_ids, generation.request.top_logprobs or 0))
            read.update(range(first, first + num_scored))
        first += num_scored + scheduled.num_logit_rows
    return outputs.without(read)


def kept_logprobs(
    generation: Generation,
    logits: torch.Tensor,  # float32 [num_nodes, V], raw
    path: Sequence[int],  # the root and the accepted nodes
    kept: Sequence[int],
) -> tuple[TokenLogprobs, ...]:
    """The logprobs of the kept tokens, nothing for who did not ask. Stop conditions may have cut the path."""
    if generation.request.top_logprobs is None:
        return ()
    return token_logprobs(logits[list(path[: len(kept)])], kept, generation.request.top_logprobs)


def take_prompt_logprobs(generation: Generation) -> tuple[TokenLogprobs, ...]:
    """The prompt's logprobs, the first time; nothing for who did not ask."""
    logprobs, generation.prompt_logprobs = tuple(generation.prompt_logprobs), []
    return logprobs
