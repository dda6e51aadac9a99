"""OpenAI fields that are not honoured yet: their no-op value is taken, any other is refused by name.

A client must never believe that a field worked when it did not.
"""

from __future__ import annotations

from typing import Any

from specgrove.errors import InvalidInput

_BOTH: dict[str, tuple[Any, ...]] = {}
_CHAT_ONLY: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),  # without tools both mean a plain answer
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
_COMPLETION_ONLY: dict[str, tuple[Any, ...]] = {"suffix": ("",)}

# About the caller or for caches of the service; they cannot change an answer.
HINTS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options")

CHAT_NEUTRAL = _BOTH | _CHAT_ONLY
COMPLETION_NEUTRAL = _BOTH | _COMPLETION_ONLY


def drop_neutral_fields(body: dict[str, Any], neutral: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """`body` without the fields that ask for nothing. Raises InvalidInput naming the first that asks for something."""
    kept = {name: value for name, value in body.items() if name not in HINTS}
    for name in list(kept):
        if name not in neutral:
            continue
        value = kept.pop(name)
        if value is None or any(_is_same(value, no_op) for no_op in neutral[name]):
            continue
        allowed = ", ".join(repr(no_op) for no_op in neutral[name]) or "null"
        raise InvalidInput(f"{name} is not supported; leave it out or send {allowed}", field=name)
    return kept


def _is_same(value: Any, no_op: Any) -> bool:
    # Python takes True for 1 and 0 for False; JSON does not.
    return value == no_op and isinstance(value, bool) == isinstance(no_op, bool)
