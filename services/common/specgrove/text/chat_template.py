"""A model's chat template: messages in, prompt text out, as `transformers` renders it.

Templates come with models, so they are code from strangers: they run in jinja2's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specgrove.errors import InvalidInput, ModelLoadError


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn. `role` is whatever the model's template knows; usually system, user or assistant."""

    role: str
    content: str


class ChatTemplate:
    """Renders conversations. `special_tokens` are the template's variables (`bos_token`, `eos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"the chat template is not valid jinja2: {error} (line {error.lineno})") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> str:
        """The prompt text. Raises InvalidInput (field `messages`) when the template refuses the conversation."""
        if not messages:
            raise InvalidInput("messages must hold at least one message", field="messages")
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(
                messages=turns, add_generation_prompt=add_generation_prompt, **self._special_tokens
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise InvalidInput(f"the model's chat template refused messages: {error}", field="messages") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # jinja2's own filter escapes HTML characters, which is not what models were trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
