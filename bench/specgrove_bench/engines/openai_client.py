"""Any server with OpenAI's completions endpoint: prompts as token ids, the answer as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import httpx

from specgrove_bench.request import Answer, Ask, AskFailed, Chunk

_TIMEOUT_S = 1800.0
_DATA = "data:"
_DONE = "[DONE]"


class OpenAIClient:
    """An async client; make and close it inside the event loop that asks. `extra_body` goes into every request."""

    def __init__(self, base_url: str, model: str, extra_body: Mapping[str, object] | None = None) -> None:
        self._model = model
        self._extra_body = dict(extra_body or {})
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(base_url=base_url, timeout=_TIMEOUT_S, trust_env=False, limits=limits)

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(self, ask: Ask) -> Answer:
        began = time.perf_counter()
        reading = _Reading()
        try:
            async with self._http.stream("POST", "/v1/completions", json=self._body(ask)) as response:
                if response.status_code != httpx.codes.OK:
                    text = (await response.aread()).decode(errors="replace")
                    raise AskFailed(f"the server answered {response.status_code}: {text[:300]}")
                async for line in response.aiter_lines():
                    words = line.removeprefix(_DATA).strip()
                    if line.startswith(_DATA) and words != _DONE:
                        reading.take(json.loads(words), time.perf_counter() - began)
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            raise AskFailed(f"the server failed: {type(error).__name__} {error}") from error
        return reading.answer()

    def _body(self, ask: Ask) -> dict[str, object]:
        return {
            "model": self._model,
            "prompt": list(ask.token_ids),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "seed": ask.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if ask.ignore_eos else {}),
            **self._extra_body,
        }


class _Reading:
    """Counts the tokens of a chunk by what the server tells: ids, else usage so far, else one for a piece of text."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._token_ids: list[int] = []
        self._num_seen = 0
        self._num_by_usage = 0

    def take(self, event: Mapping[str, Any], at_s: float) -> None:
        if "error" in event:
            raise AskFailed(f"the server broke off: {event['error']}")
        choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
        usage = event.get("usage") or {}
        self._num_by_usage = usage.get("completion_tokens", self._num_by_usage)
        ids = choice.get("token_ids") or ()
        if ids:
            num_tokens = len(ids)
            self._token_ids.extend(ids)
        elif usage:
            num_tokens = self._num_by_usage - self._num_seen if choice else 0
        else:
            num_tokens = 1 if choice.get("text") else 0
        if num_tokens > 0:
            self._num_seen += num_tokens
            self._chunks.append(Chunk(at_s, num_tokens))

    def answer(self) -> Answer:
        """Tokens that showed in no chunk of their own (half a character, the end of sequence) count with the last."""
        missing = self._num_by_usage - self._num_seen
        if missing > 0 and self._chunks:
            last = self._chunks[-1]
            self._chunks[-1] = Chunk(last.at_s, last.num_tokens + missing)
        return Answer(tuple(self._chunks), tuple(self._token_ids))
