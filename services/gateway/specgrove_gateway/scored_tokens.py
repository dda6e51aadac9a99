"""Logprobs as the verifier sends them, with the spelling of each token and its place in the text."""

from __future__ import annotations

from collections.abc import Sequence

from specgrove.outcome import TokenLogprobs
from specgrove.text import OutputText, Tokenizer
from specgrove_gateway.generation import Echo, ScoredToken


def scored_tokens(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], offsets: Sequence[int]
) -> tuple[ScoredToken, ...]:
    """The tokens with their logprobs (None: nothing stood before it)."""
    return tuple(
        ScoredToken(
            tokenizer.token_text(token_id),
            offset,
            None if scores is None else scores.logprob,
            () if scores is None else tuple((tokenizer.token_text(top_id), value) for top_id, value in scores.top),
        )
        for token_id, scores, offset in zip(token_ids, logprobs, offsets, strict=True)
    )


def echo_of(tokenizer: Tokenizer, text: str, token_ids: tuple[int, ...], logprobs: Sequence[TokenLogprobs]) -> Echo:
    """The prompt; `logprobs` are those of all its tokens but the first, or nothing."""
    if len(logprobs) != len(token_ids) - 1:
        return Echo(text, token_ids)
    read = OutputText(tokenizer)
    offsets = []
    for token_id in token_ids:
        offsets.append(read.num_chars)
        read.push(token_id)
    return Echo(text, token_ids, scored_tokens(tokenizer, token_ids, (None, *logprobs), offsets))
