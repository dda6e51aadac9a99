"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specgrove_gateway.admission import Admission
from specgrove_gateway.metrics import GatewayMetrics
from specgrove_gateway.openai_http.answers import Json
from specgrove_gateway.openai_http.body import json_object, read_body, require_json
from specgrove_gateway.openai_http.errors import status_name
from specgrove_gateway.openai_http.token_requests import parse_detokenize, parse_tokenize
from specgrove_gateway.tokenization import Tokenization

_THREAD_ABOVE_BYTES = 16 * 1024  # parsing more would be felt by streams
_RequestT = TypeVar("_RequestT")


class TokenEndpoints:
    """Text to ids and back. Each request counts as arriving, like those that will generate."""

    def __init__(
        self, tokenization: Tokenization, admission: Admission, metrics: GatewayMetrics, *, max_body_bytes: int
    ) -> None:
        self._tokenization = tokenization
        self._admission = admission
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes

    async def tokenize(self, request: Request) -> Response:
        require_json(request)
        with self._metrics.count_errors(status_name):
            body = await read_body(request, self._max_body_bytes)
            with self._admission.arriving():
                tokens = await self._tokenization.tokenize(await _parsed(body, parse_tokenize))
        answer: Json = {
            "count": len(tokens.token_ids),
            "max_model_len": tokens.max_context_len,
            "tokens": tokens.token_ids,
            "token_strs": tokens.token_strs,
        }
        return JSONResponse(answer)

    async def detokenize(self, request: Request) -> Response:
        require_json(request)
        with self._metrics.count_errors(status_name):
            body = await read_body(request, self._max_body_bytes)
            with self._admission.arriving():
                text = await self._tokenization.detokenize(await _parsed(body, parse_detokenize))
        return JSONResponse({"prompt": text})


async def _parsed(body: bytes, parse: Callable[[dict[str, Any]], _RequestT]) -> _RequestT:
    def parsed() -> _RequestT:
        return parse(json_object(body))

    return await asyncio.to_thread(parsed) if len(body) > _THREAD_ABOVE_BYTES else parsed()
