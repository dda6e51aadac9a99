"""The bodies of /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from specgrove.errors import InvalidInput
from specgrove_gateway.generation import ChatPrompt, TextPrompt
from specgrove_gateway.openai_http.neutral_fields import drop_neutral_fields
from specgrove_gateway.openai_http.requests import Count, Messages
from specgrove_gateway.openai_http.strict_body import StrictBody, validated
from specgrove_gateway.tokenization import DetokenizeRequest, TokenizeRequest

# vLLM's fields that are not honoured, with the values that ask for nothing.
TOKENIZE_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "tools": ([],),
}


class TokenizeBody(StrictBody):
    """One of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(StrictBody):
    model: str | None = None
    tokens: Annotated[list[Count], Field(fail_fast=True)]


def parse_tokenize(body: dict[str, Any]) -> TokenizeRequest:
    """The request of POST /tokenize. Raises InvalidInput naming the field."""
    parsed = validated(TokenizeBody, drop_neutral_fields(body, TOKENIZE_NEUTRAL))
    return TokenizeRequest(
        prompt=_prompt(parsed),
        prompt_field="prompt" if parsed.messages is None else "messages",
        model=parsed.model,
        add_special_tokens=parsed.add_special_tokens,
        add_generation_prompt=parsed.add_generation_prompt is not False,
        return_token_strs=bool(parsed.return_token_strs),
    )


def _prompt(body: TokenizeBody) -> TextPrompt | ChatPrompt:
    if body.messages is None:
        if body.prompt is None:
            raise InvalidInput("prompt is missing: send prompt, a text, or messages", field="prompt")
        if body.add_generation_prompt is not None:
            raise InvalidInput("add_generation_prompt needs messages", field="add_generation_prompt")
        return TextPrompt(body.prompt)
    if body.prompt is not None:
        raise InvalidInput("prompt and messages exclude each other; send one of them", field="prompt")
    return ChatPrompt(tuple(message.to_message() for message in body.messages))


def parse_detokenize(body: dict[str, Any]) -> DetokenizeRequest:
    """The request of POST /detokenize. Raises InvalidInput naming the field."""
    parsed = validated(DetokenizeBody, body)
    return DetokenizeRequest(tuple(parsed.tokens), "tokens", parsed.model)
