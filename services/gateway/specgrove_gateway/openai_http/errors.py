"""Errors as OpenAI clients expect them: `{"error": {message, type, param, code}}` with the status of the table."""

from __future__ import annotations

import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from specgrove.errors import ContextTooLong, ModelNotFound, Overloaded, SpecgroveError, status_of

_CODES: dict[type[Exception], str] = {
    ContextTooLong: "context_length_exceeded",
    ModelNotFound: "model_not_found",
    Overloaded: "rate_limit_exceeded",
}


def status_name(error: Exception) -> str:
    """The gRPC status under which an error of this face is counted; a client that left in mid-body is CANCELLED."""
    if isinstance(error, ClientDisconnect):
        return "CANCELLED"
    if isinstance(error, HTTPException):
        if error.status_code == 408:
            return "DEADLINE_EXCEEDED"
        return "INVALID_ARGUMENT" if error.status_code < 500 else "INTERNAL"
    return status_of(error).grpc


def error_body(error: Exception) -> dict[str, Any]:
    """The body that tells a client what was wrong; foreign exceptions keep their details inside."""
    message = (
        error.message if isinstance(error, SpecgroveError) else "internal error; the gateway's log has the details"
    )
    return _body(message, status_of(error).openai_type, getattr(error, "field", None), _CODES.get(type(error)))


def error_response(error: Exception) -> JSONResponse:
    """The response for an error before the first byte."""
    headers = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return JSONResponse(error_body(error), status_code=status_of(error).http, headers=headers)


def refusal(
    status_code: int, message: str, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """A refusal that only HTTP knows: unknown path, wrong method, wrong content type."""
    return JSONResponse(
        _body(message, "invalid_request_error", param, None), status_code=status_code, headers=headers or {}
    )


def _body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
