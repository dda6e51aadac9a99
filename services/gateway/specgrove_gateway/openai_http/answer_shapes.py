"""The shapes of all answers, for the OpenAPI document; a test holds real answers against them.

Answers are built as plain dicts in `answers.py`, without a model in the path of a token.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import SkipJsonSchema

from specgrove.outcome import FinishReason

_Missing = SkipJsonSchema[None]  # a field that may be absent and is never null
# Of each token's choice; see the README.
_Logprobs = dict[str, Any] | None


class Usage(BaseModel):
    """Tokens read and written; stop tokens count although they have no text."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class SpeculationFigures(BaseModel):
    """What speculation did for one answer."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_drafts: int
    num_committed_tokens: int
    accepted_per_pos: list[int]
    drafted_per_pos: list[int]
    prefill_s: float
    decode_s: float


class Metrics(BaseModel):
    speculative_decoding: SpeculationFigures


class _Envelope(BaseModel):
    id: str
    created: int
    model: str


class _Whole(_Envelope):
    usage: Usage
    seed: int
    metrics: Metrics


class _Chunk(_Envelope):
    """`seed` and `metrics` come with the last chunk, and `usage` if asked for, which is null in the others then."""

    usage: Usage | None = None
    seed: int | _Missing = None
    metrics: Metrics | _Missing = None


class ChatAnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: ChatAnswerMessage
    logprobs: _Logprobs
    finish_reason: FinishReason
    seed: int | _Missing = None  # where there are several


class ChatCompletion(_Whole):
    """The answer of a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ChatDelta(BaseModel):
    """The role comes first, then pieces of the text."""

    role: Literal["assistant"] | _Missing = None
    content: str | _Missing = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: _Logprobs
    finish_reason: FinishReason | None


class ChatCompletionChunk(_Chunk):
    """One event of a streamed chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: _Logprobs
    finish_reason: FinishReason
    seed: int | _Missing = None  # where there are several


class Completion(_Whole):
    """The continuation of a prompt."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class CompletionChunkChoice(BaseModel):
    index: int
    text: str
    logprobs: _Logprobs
    finish_reason: FinishReason | None


class CompletionChunk(_Chunk):
    """One event of a streamed completion."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]


class TokenizeAnswer(BaseModel):
    """`max_model_len` is null until a verifier has answered."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(BaseModel):
    prompt: str


class Model(BaseModel):
    """The served model. Its limits are missing until a verifier has answered."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | _Missing = None
    vocab_size: int | _Missing = None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class StatusAnswer(BaseModel):
    status: Literal["ok", "ready"]


class VersionAnswer(BaseModel):
    version: str


class ErrorDetail(BaseModel):
    """`param` names the wrong field as the client spelled it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every error has this body; in a stream that has begun it is the data of the last event."""

    error: ErrorDetail
