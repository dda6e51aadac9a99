"""The ASGI application: paths to endpoints, and every failure to an OpenAI error body."""

from __future__ import annotations

import json
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from specgrove.errors import SpecgroveError
from specgrove_gateway.openai_http.endpoints import GenerationEndpoints
from specgrove_gateway.openai_http.errors import error_response, refusal
from specgrove_gateway.openai_http.openapi import build_document
from specgrove_gateway.openai_http.operations import OPERATIONS
from specgrove_gateway.openai_http.status_endpoints import StatusEndpoints
from specgrove_gateway.openai_http.token_endpoints import TokenEndpoints

_CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody reads it


def build_app(generation: GenerationEndpoints, tokens: TokenEndpoints, status: StatusEndpoints) -> Starlette:
    """The application; it owns nothing and may be served by any ASGI server."""
    document = json.dumps(build_document(OPERATIONS), ensure_ascii=False).encode()

    async def openapi(request: Request) -> Response:
        return Response(document, media_type="application/json")

    endpoints = {
        "createChatCompletion": generation.chat_completions,
        "createCompletion": generation.completions,
        "tokenize": tokens.tokenize,
        "detokenize": tokens.detokenize,
        "listModels": status.models,
        "retrieveModel": status.model,
        "health": status.health,
        "ready": status.ready,
        "version": status.version,
        "metrics": status.metrics,
        "openapi": openapi,
    }
    return Starlette(
        routes=[
            Route(operation.route, endpoints[operation.operation_id], methods=[operation.method])
            for operation in OPERATIONS
        ],
        exception_handlers={
            HTTPException: _http_exception,
            SpecgroveError: _specgrove_error,
            ClientDisconnect: _client_left,
            Exception: _unexpected,
        },
    )


async def _http_exception(request: Request, error: Exception) -> Response:
    refused = cast(HTTPException, error)
    messages = {
        404: f"there is no {request.url.path} here; see /openapi.json",
        405: f"{request.method} is not allowed on {request.url.path}",
    }
    message = messages.get(refused.status_code, refused.detail)
    return refusal(refused.status_code, message, headers=dict(refused.headers or {}))


async def _specgrove_error(request: Request, error: Exception) -> Response:
    return error_response(error)


async def _client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _unexpected(request: Request, error: Exception) -> Response:
    # Starlette raises it again afterwards, and the server logs it with its traceback.
    return error_response(error)
