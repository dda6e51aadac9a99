"""The bodies of the two endpoints, checked strictly, and their way to a `ClientRequest`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Tag, WithJsonSchema

from specgrove.errors import InvalidInput
from specgrove.sampling.params import MAX_EXPANSION_LEVELS, MAX_STOP_STRINGS, SpeculationOptions
from specgrove.sampling.rules import Rule
from specgrove.text import ChatMessage
from specgrove_gateway.generation import ChatPrompt, ClientRequest, Prompt, TextPrompt, TokenPrompt
from specgrove_gateway.openai_http.logit_bias import read_logit_bias
from specgrove_gateway.openai_http.neutral_fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL, drop_neutral_fields
from specgrove_gateway.openai_http.strict_body import LIST, STRING, StrictBody, StringOrList, validated

_MAX_COUNT = 2**31 - 1  # counts travel as 32-bit integers
# Pydantic notes a problem for every item of a body, and a million of them take seconds: a list ends at its first wrong
# item.
_MAX_MESSAGES = 4096
_MAX_CONTENT_PARTS = 256
_MAX_STOP_TOKEN_IDS = 64
_MAX_COMPLETION_LOGPROBS = 5  # as OpenAI says of that endpoint

Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
# Signed and unbounded here: `SamplingParams` and the request builder refuse wrong values in one voice for both faces.
Number = int
_NoItems = Annotated[list[None], Field(max_length=0, fail_fast=True)]


class StreamOptionsBody(StrictBody):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis; off is all we offer


class SpeculationBody(StrictBody):
    enabled: bool = True
    max_nodes: Count = 0
    max_depth: Count = 0
    rule: Literal["coupled", "mss", "naive"] | None = None
    expansion: Annotated[list[Count], Field(max_length=MAX_EXPANSION_LEVELS, fail_fast=True)] | None = None

    def to_options(self) -> SpeculationOptions:
        return SpeculationOptions(
            self.enabled,
            self.max_nodes,
            self.max_depth,
            None if self.rule is None else Rule(self.rule),
            tuple(self.expansion or ()),
        )


_StopStrings = Annotated[list[str], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]


class _GenerationBody(StrictBody):
    """What both endpoints share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptionsBody | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Any = None  # read by hand: pydantic would look at every one of a million entries
    n: Number | None = None
    max_tokens: Number | None = None
    stop: Annotated[Annotated[str, Tag(STRING)] | Annotated[_StopStrings, Tag(LIST)], StringOrList] | None = None
    # Extensions, named as vLLM names them.
    top_k: Number | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[Count], Field(max_length=_MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = None
    priority: Number | None = None
    session_id: str | None = None
    speculation: SpeculationBody | None = None


class TextPart(StrictBody):
    type: Literal["text"]
    text: str


_TextParts = Annotated[list[TextPart], Field(max_length=_MAX_CONTENT_PARTS, fail_fast=True)]


class MessageBody(StrictBody):
    """One message. The null fields are those that clients send back when they echo an assistant's message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Annotated[str, Tag(STRING)] | Annotated[_TextParts, Tag(LIST)], StringOrList]
    name: None = None
    refusal: None = None
    annotations: _NoItems | None = None
    audio: None = None
    function_call: None = None
    tool_calls: _NoItems | None = None

    def to_message(self) -> ChatMessage:
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return ChatMessage("system" if self.role == "developer" else self.role, content)


Messages = Annotated[list[MessageBody], Field(max_length=_MAX_MESSAGES, fail_fast=True)]


class ChatBody(_GenerationBody):
    messages: Messages
    max_completion_tokens: Number | None = None
    logprobs: bool | None = None
    top_logprobs: Number | None = None


_PROMPT_LIST_SCHEMA = {
    "description": "Token ids, or a list of one prompt.",
    "type": "array",
    "items": {
        "anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string"},
            {"type": "array", "items": {"type": "integer", "minimum": 0}},
        ]
    },
}


class CompletionBody(_GenerationBody):
    # What is in the list is told apart by hand: a union would collect an error per token id and branch.
    prompt: Annotated[
        Annotated[str, Tag(STRING)] | Annotated[list[Any], Tag(LIST), WithJsonSchema(_PROMPT_LIST_SCHEMA)],
        StringOrList,
    ]
    best_of: Number | None = None
    echo: bool | None = None
    logprobs: Annotated[Number | None, BeforeValidator(lambda value: None if value is False else value)] = None


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A parsed body: what to generate, and how to send it."""

    client: ClientRequest
    is_stream: bool
    has_usage_chunk: bool


def parse_chat(body: dict[str, Any], header_session_id: str | None) -> HttpRequest:
    """The request of POST /v1/chat/completions. Raises InvalidInput naming the field."""
    parsed = validated(ChatBody, drop_neutral_fields(body, CHAT_NEUTRAL))
    max_tokens, max_tokens_field = parsed.max_tokens, "max_tokens"
    if parsed.max_completion_tokens is not None:
        if max_tokens not in (None, parsed.max_completion_tokens):
            raise InvalidInput("max_tokens and max_completion_tokens differ; send one of them", field="max_tokens")
        max_tokens, max_tokens_field = parsed.max_completion_tokens, "max_completion_tokens"
    prompt = ChatPrompt(tuple(message.to_message() for message in parsed.messages))
    request = _http_request(parsed, prompt, "messages", max_tokens, max_tokens_field, header_session_id)
    if not parsed.logprobs:
        if parsed.top_logprobs:
            raise InvalidInput("top_logprobs needs logprobs: true", field="top_logprobs")
        return request
    return replace(request, client=replace(request.client, top_logprobs=parsed.top_logprobs or 0))


def parse_completion(body: dict[str, Any], header_session_id: str | None) -> HttpRequest:
    """The request of POST /v1/completions. Raises InvalidInput naming the field."""
    parsed = validated(CompletionBody, drop_neutral_fields(body, COMPLETION_NEUTRAL))
    request = _http_request(parsed, _prompt(parsed), "prompt", parsed.max_tokens, "max_tokens", header_session_id)
    if parsed.best_of is not None and parsed.best_of != (1 if parsed.n is None else parsed.n):
        raise InvalidInput("best_of must equal n: nothing is drawn that is not shown", field="best_of")
    client = replace(
        request.client,
        echo=bool(parsed.echo),
        top_logprobs=parsed.logprobs,
        top_logprobs_field="logprobs",
        max_top_logprobs=_MAX_COMPLETION_LOGPROBS,
    )
    return replace(request, client=client)


def _prompt(body: CompletionBody) -> Prompt:
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            raise InvalidInput(f"prompt holds {len(prompt)} prompts; send one a request", field="prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if any(type(token_id) is not int for token_id in prompt):  # JSON's true is no token id
        raise InvalidInput("prompt must be a string or a list of token ids", field="prompt")
    return TokenPrompt(tuple(prompt))


def _http_request(
    body: _GenerationBody,
    prompt: Prompt,
    prompt_field: str,
    max_tokens: int | None,
    max_tokens_field: str,
    header_session_id: str | None,
) -> HttpRequest:
    if body.session_id and header_session_id and body.session_id != header_session_id:
        raise InvalidInput("session_id differs from the header x-session-id; send one of them", field="session_id")
    if body.stream_options is not None and not body.stream:
        raise InvalidInput("stream_options needs stream: true", field="stream_options")
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        raise InvalidInput(
            "include_obfuscation is not supported; leave it out or send false",
            field="stream_options.include_obfuscation",
        )
    client = ClientRequest(
        prompt=prompt,
        prompt_field=prompt_field,
        model=body.model,
        session_id=body.session_id or header_session_id,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        n=body.n,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=read_logit_bias(body.logit_bias),
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        priority=body.priority or 0,
        speculation=(body.speculation or SpeculationBody()).to_options(),
    )
    has_usage_chunk = body.stream_options is not None and bool(body.stream_options.include_usage)
    return HttpRequest(client, bool(body.stream), has_usage_chunk)
