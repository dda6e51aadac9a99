"""What the HTTP face offers: one row an endpoint. Routes and the OpenAPI document are both made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from specgrove_gateway.openai_http import answer_shapes as shapes
from specgrove_gateway.openai_http.headers import FIGURE_HEADERS, REQUEST_HEADERS
from specgrove_gateway.openai_http.neutral_fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL, HINTS
from specgrove_gateway.openai_http.requests import ChatBody, CompletionBody
from specgrove_gateway.openai_http.strict_body import StrictBody
from specgrove_gateway.openai_http.token_requests import TOKENIZE_NEUTRAL, DetokenizeBody, TokenizeBody

ERRORS = {
    400: "A field, or the body as a whole, is wrong.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    409: "A newer call has taken the session.",
    413: "The body is too large.",
    415: "The body must be application/json.",
    429: "No room now; come back after `retry-after` seconds.",
    500: "An error of ours; the gateway's log has the details.",
    503: "No verifier can be reached.",
}
_BODY_ERRORS = (400, 404, 408, 413, 415, 429, 500)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    operation_id: str
    method: str
    path: str  # as OpenAPI writes it
    summary: str
    answer: type[BaseModel] | None  # None: not JSON, but `media_type`
    media_type: str = "application/json"
    body: type[StrictBody] | None = None
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # field -> the values that ask for nothing
    hints: tuple[str, ...] = ()  # fields that are read by nobody
    event: type[BaseModel] | None = None  # what a streamed answer's events hold
    headers: Mapping[str, str] = field(default_factory=dict)
    errors: tuple[int, ...] = (500,)

    @property
    def route(self) -> str:
        """The path as Starlette matches it: a model's id may hold slashes."""
        return self.path.replace("{model_id}", "{model_id:path}")


OPERATIONS = (
    Operation(
        operation_id="createChatCompletion",
        method="POST",
        path="/v1/chat/completions",
        summary="Answer a conversation",
        answer=shapes.ChatCompletion,
        body=ChatBody,
        neutral=CHAT_NEUTRAL,
        hints=HINTS,
        event=shapes.ChatCompletionChunk,
        headers=REQUEST_HEADERS | FIGURE_HEADERS,
        errors=(*_BODY_ERRORS, 409, 503),
    ),
    Operation(
        operation_id="createCompletion",
        method="POST",
        path="/v1/completions",
        summary="Continue a prompt",
        answer=shapes.Completion,
        body=CompletionBody,
        neutral=COMPLETION_NEUTRAL,
        hints=HINTS,
        event=shapes.CompletionChunk,
        headers=REQUEST_HEADERS | FIGURE_HEADERS,
        errors=(*_BODY_ERRORS, 409, 503),
    ),
    Operation(
        operation_id="tokenize",
        method="POST",
        path="/tokenize",
        summary="The token ids of a text or a conversation",
        answer=shapes.TokenizeAnswer,
        body=TokenizeBody,
        neutral=TOKENIZE_NEUTRAL,
        errors=_BODY_ERRORS,
    ),
    Operation(
        operation_id="detokenize",
        method="POST",
        path="/detokenize",
        summary="The text of token ids",
        answer=shapes.DetokenizeAnswer,
        body=DetokenizeBody,
        errors=_BODY_ERRORS,
    ),
    Operation("listModels", "GET", "/v1/models", "The served model and its limits", shapes.ModelList),
    Operation("retrieveModel", "GET", "/v1/models/{model_id}", "One model", shapes.Model, errors=(404, 500)),
    Operation("health", "GET", "/health", "Whether the process is alive", shapes.StatusAnswer),
    Operation(
        "ready", "GET", "/ready", "Whether at least one verifier is healthy", shapes.StatusAnswer, errors=(500, 503)
    ),
    Operation("version", "GET", "/version", "The version of specgrove", shapes.VersionAnswer),
    Operation("metrics", "GET", "/metrics", "Prometheus metrics", None, media_type="text/plain"),
    Operation("openapi", "GET", "/openapi.json", "This document", None),
)
