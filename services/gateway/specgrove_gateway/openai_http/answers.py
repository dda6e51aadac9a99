"""The answers of the two endpoints, streamed and whole, in the shapes of the OpenAI API plus `metrics` and `seed`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from specgrove.outcome import FinishReason, SpeculationStats, merged_stats
from specgrove.sampling.seeds import choice_seed
from specgrove_gateway.generation import Finished, GenerationRequest, ScoredToken, Usage
from specgrove_gateway.openai_http.logprobs import chat_logprobs, completion_logprobs

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole choice."""

    text: str
    logprobs: Sequence[ScoredToken]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of all choices together. The prompt is counted once."""

    usage: Usage
    stats: SpeculationStats

    @classmethod
    def of(cls, finished: Sequence[Finished]) -> Totals:
        usages = [choice.usage for choice in finished]
        usage = Usage(usages[0].prompt_tokens, sum(usage.completion_tokens for usage in usages))
        return cls(usage, merged_stats([choice.stats for choice in finished]))


class AnswerFormat(Protocol):
    """How one endpoint spells its answer."""

    def opening(self, index: int) -> Json | None:
        """The chunk before any text of a choice, if the endpoint has one."""
        ...

    def delta(self, index: int, text: str, logprobs: Sequence[ScoredToken]) -> Json:
        """A chunk with new text, or with new tokens whose text is held back."""
        ...

    def ending(self, index: int, finish_reason: FinishReason, totals: Totals | None) -> Json:
        """The chunk with the finish reason, without usage. `totals` come with the last choice's."""
        ...

    def usage(self, totals: Totals) -> Json:
        """The chunk after the endings for clients that asked for usage; it has no choices."""
        ...

    def whole(self, choices: Sequence[Choice], totals: Totals) -> Json:
        """The unstreamed answer."""
        ...


class _Envelope:
    """The fields around the choices. `extras` of the last chunk carry what OpenAI has no field for."""

    def __init__(self, request: GenerationRequest, model: str, id_prefix: str, has_usage_chunk: bool) -> None:
        self._request = request
        self._model = model
        self._id = f"{id_prefix}-{request.request_id}"
        self._created = int(time.time())
        self._has_usage_chunk = has_usage_chunk

    def wrap(self, kind: str, choices: list[Json], **fields: Any) -> Json:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
            **fields,
        }

    def chunk(self, kind: str, choice: Json, totals: Totals | None = None) -> Json:
        if self._has_usage_chunk:
            return self.wrap(kind, [choice], usage=None)  # OpenAI: null on every chunk but the one that carries it
        return self.wrap(kind, [choice], **({} if totals is None else self.extras(totals)))

    def with_totals(self, kind: str, choices: list[Json], totals: Totals) -> Json:
        for choice in choices if self._request.num_choices > 1 else ():
            choice["seed"] = choice_seed(self._request.sampling.seed, choice["index"])
        return self.wrap(kind, choices, usage=_usage(totals.usage), **self.extras(totals))

    def extras(self, totals: Totals) -> Json:
        return {
            "seed": self._request.sampling.seed,
            "metrics": {"speculative_decoding": speculation_figures(totals.stats)},
        }


class ChatFormat:
    """POST /v1/chat/completions."""

    def __init__(self, request: GenerationRequest, model: str, has_usage_chunk: bool) -> None:
        self._envelope = _Envelope(request, model, "chatcmpl", has_usage_chunk)

    def opening(self, index: int) -> Json | None:
        return self._chunk(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, text: str, logprobs: Sequence[ScoredToken]) -> Json:
        return self._chunk(index, {"content": text}, logprobs)

    def ending(self, index: int, finish_reason: FinishReason, totals: Totals | None) -> Json:
        return self._chunk(index, {}, finish_reason=finish_reason.value, totals=totals)

    def usage(self, totals: Totals) -> Json:
        return self._envelope.with_totals("chat.completion.chunk", [], totals)

    def whole(self, choices: Sequence[Choice], totals: Totals) -> Json:
        spelled = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": chat_logprobs(choice.logprobs),
                "finish_reason": choice.finish_reason.value,
            }
            for index, choice in enumerate(choices)
        ]
        return self._envelope.with_totals("chat.completion", spelled, totals)

    def _chunk(
        self,
        index: int,
        delta: Json,
        logprobs: Sequence[ScoredToken] = (),
        finish_reason: str | None = None,
        totals: Totals | None = None,
    ) -> Json:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": chat_logprobs(logprobs),
            "finish_reason": finish_reason,
        }
        return self._envelope.chunk("chat.completion.chunk", choice, totals)


class CompletionFormat:
    """POST /v1/completions."""

    def __init__(self, request: GenerationRequest, model: str, has_usage_chunk: bool) -> None:
        self._envelope = _Envelope(request, model, "cmpl", has_usage_chunk)

    def opening(self, index: int) -> Json | None:
        return None

    def delta(self, index: int, text: str, logprobs: Sequence[ScoredToken]) -> Json:
        return self._envelope.chunk("text_completion", _completion_choice(index, text, None, logprobs))

    def ending(self, index: int, finish_reason: FinishReason, totals: Totals | None) -> Json:
        return self._envelope.chunk("text_completion", _completion_choice(index, "", finish_reason, ()), totals)

    def usage(self, totals: Totals) -> Json:
        return self._envelope.with_totals("text_completion", [], totals)

    def whole(self, choices: Sequence[Choice], totals: Totals) -> Json:
        spelled = [
            _completion_choice(index, choice.text, choice.finish_reason, choice.logprobs)
            for index, choice in enumerate(choices)
        ]
        return self._envelope.with_totals("text_completion", spelled, totals)


def _completion_choice(
    index: int, text: str, finish_reason: FinishReason | None, logprobs: Sequence[ScoredToken]
) -> Json:
    return {
        "index": index,
        "text": text,
        "logprobs": completion_logprobs(logprobs),
        "finish_reason": None if finish_reason is None else finish_reason.value,
    }


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
