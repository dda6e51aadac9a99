"""Logprobs as the two endpoints spell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgrove.text import TokenText
from specgrove_gateway.generation import ScoredToken


def chat_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any] | None:
    """The `logprobs` of a chat choice. Control tokens have no `bytes`; the others' join to the text."""
    if not tokens:
        return None
    content = [
        {
            **_chat_token(scored.token, scored.logprob),
            "top_logprobs": [_chat_token(token, logprob) for token, logprob in scored.top],
        }
        for scored in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any] | None:
    """The `logprobs` of a completion choice, in OpenAI's older shape."""
    if not tokens:
        return None
    return {
        "tokens": [_completion_name(scored.token) for scored in tokens],
        "token_logprobs": [scored.logprob for scored in tokens],
        "top_logprobs": [_by_name(scored) for scored in tokens] if any(scored.top for scored in tokens) else None,
        "text_offset": [scored.text_offset for scored in tokens],
    }


def _chat_token(token: TokenText, logprob: float | None) -> dict[str, Any]:
    return {"token": token.text, "logprob": logprob, "bytes": None if token.raw is None else list(token.raw)}


def _completion_name(token: TokenText) -> str:
    return f"bytes:{token.text}" if token.is_fragment else token.text


def _by_name(scored: ScoredToken) -> dict[str, float] | None:
    """The token that came is always among them; of tokens with one name the likelier counts."""
    if scored.logprob is None or not scored.top:
        return None
    by_name = {_completion_name(scored.token): scored.logprob}
    for token, logprob in scored.top:
        by_name.setdefault(_completion_name(token), logprob)
    return by_name
