"""The answers of the two endpoints, streamed and whole, in the shapes of the OpenAI API plus `metrics` and `seed`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

from specgrove.outcome import SpeculationStats
from specgrove_gateway.generation import Finished, GenerationRequest, ScoredToken, Usage
from specgrove_gateway.openai_http.logprobs import chat_logprobs, completion_logprobs

Json = dict[str, Any]


class AnswerFormat(Protocol):
    """How one endpoint spells its answer."""

    def opening(self) -> Json | None:
        """The chunk before any text, if the endpoint has one."""
        ...

    def delta(self, text: str, logprobs: Sequence[ScoredToken]) -> Json:
        """A chunk with new text, or with new tokens whose text is held back."""
        ...

    def ending(self, finished: Finished) -> Json:
        """The chunk with the finish reason, without usage."""
        ...

    def usage(self, finished: Finished) -> Json:
        """The chunk after the ending for clients that asked for usage; it has no choices."""
        ...

    def whole(self, text: str, logprobs: Sequence[ScoredToken], finished: Finished) -> Json:
        """The unstreamed answer."""
        ...


class _Envelope:
    """The fields around the choices. `extras` of the last chunk carry what OpenAI has no field for."""

    def __init__(self, request: GenerationRequest, model: str, id_prefix: str) -> None:
        self._request = request
        self._model = model
        self._id = f"{id_prefix}-{request.request_id}"
        self._created = int(time.time())

    def wrap(self, kind: str, choices: list[Json], **fields: Any) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            **fields,
        }

    def extras(self, finished: Finished) -> Json:
        return {
            "seed": self._request.sampling.seed,
            "metrics": {"speculative_decoding": speculation_figures(finished.stats)},
        }


class ChatFormat:
    """POST /v1/chat/completions."""

    def __init__(self, request: GenerationRequest, model: str, has_usage_chunk: bool) -> None:
        self._envelope = _Envelope(request, model, "chatcmpl")
        self._has_usage_chunk = has_usage_chunk

    def opening(self) -> Json | None:
        return self._chunk({"role": "assistant", "content": ""}, None)

    def delta(self, text: str, logprobs: Sequence[ScoredToken]) -> Json:
        return self._chunk({"content": text}, None, logprobs)

    def ending(self, finished: Finished) -> Json:
        extras = {} if self._has_usage_chunk else self._envelope.extras(finished)
        return self._chunk({}, finished.finish_reason.value, **extras)

    def usage(self, finished: Finished) -> Json:
        return self._envelope.wrap(
            "chat.completion.chunk", [], usage=_usage(finished.usage), **self._envelope.extras(finished)
        )

    def whole(self, text: str, logprobs: Sequence[ScoredToken], finished: Finished) -> Json:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": chat_logprobs(logprobs),
            "finish_reason": finished.finish_reason.value,
        }
        return self._envelope.wrap(
            "chat.completion", [choice], usage=_usage(finished.usage), **self._envelope.extras(finished)
        )

    def _chunk(
        self, delta: Json, finish_reason: str | None, logprobs: Sequence[ScoredToken] = (), **fields: Any
    ) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": chat_logprobs(logprobs), "finish_reason": finish_reason}
        if self._has_usage_chunk:
            fields["usage"] = None  # OpenAI: null on every chunk but the one that carries it
        return self._envelope.wrap("chat.completion.chunk", [choice], **fields)


class CompletionFormat:
    """POST /v1/completions."""

    def __init__(self, request: GenerationRequest, model: str, has_usage_chunk: bool) -> None:
        self._envelope = _Envelope(request, model, "cmpl")
        self._has_usage_chunk = has_usage_chunk

    def opening(self) -> Json | None:
        return None

    def delta(self, text: str, logprobs: Sequence[ScoredToken]) -> Json:
        return self._chunk(text, None, logprobs)

    def ending(self, finished: Finished) -> Json:
        extras = {} if self._has_usage_chunk else self._envelope.extras(finished)
        return self._chunk("", finished.finish_reason.value, **extras)

    def usage(self, finished: Finished) -> Json:
        return self._envelope.wrap(
            "text_completion", [], usage=_usage(finished.usage), **self._envelope.extras(finished)
        )

    def whole(self, text: str, logprobs: Sequence[ScoredToken], finished: Finished) -> Json:
        return self._envelope.wrap(
            "text_completion",
            [_completion_choice(text, finished.finish_reason.value, logprobs)],
            usage=_usage(finished.usage),
            **self._envelope.extras(finished),
        )

    def _chunk(self, text: str, finish_reason: str | None, logprobs: Sequence[ScoredToken] = (), **fields: Any) -> Json:
        if self._has_usage_chunk:
            fields["usage"] = None
        return self._envelope.wrap("text_completion", [_completion_choice(text, finish_reason, logprobs)], **fields)


def _completion_choice(text: str, finish_reason: str | None, logprobs: Sequence[ScoredToken]) -> Json:
    return {"index": 0, "text": text, "logprobs": completion_logprobs(logprobs), "finish_reason": finish_reason}


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def speculation_figures(stats: SpeculationStats) -> Json:
    """The shape that load tools parse, and behind it our own counts."""
    at_least = (stats.num_steps, *stats.accepted_per_pos, 0)  # [n] = steps that kept n draft tokens or more
    return {
        "mean_acceptance_length": _ratio(
            stats.num_committed_tokens, stats.num_steps
        ),  # the target's own token included
        "draft_acceptance_rate": _ratio(stats.num_accepted_tokens, stats.num_draft_tokens),  # of the verified nodes
        "acceptance_histogram": [max(0, more - fewer) for more, fewer in pairwise(at_least)],
        "num_spec_steps": stats.num_steps,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_draft_tokens": stats.num_accepted_tokens,
        "num_drafts": stats.num_drafts,
        "num_committed_tokens": stats.num_committed_tokens,
        "accepted_per_pos": stats.accepted_per_pos,
        "drafted_per_pos": stats.drafted_per_pos,
        "prefill_s": stats.prefill_s,
        "decode_s": stats.decode_s,
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
