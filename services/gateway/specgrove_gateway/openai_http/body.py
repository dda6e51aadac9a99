"""A request's JSON body, read under a size cap and a deadline, and parsed strictly."""

from __future__ import annotations

import asyncio
from typing import Any

import pydantic_core
from starlette.exceptions import HTTPException
from starlette.requests import Request

from specgrove.errors import InvalidInput, RequestTooLarge

_READ_TIMEOUT_S = 30.0
_MAX_DISCARDED_BYTES = 64 * 1024 * 1024


def require_json(request: Request) -> None:
    """Raises HTTPException 415 for another content type."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HTTPException(415, "the header content-type must be application/json")


def json_object(body: bytes) -> dict[str, Any]:
    """The body as a dict. NaN, infinities, lone surrogates and invalid UTF-8 are refused.

    Raises InvalidInput for what is not a JSON object.
    """
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInput(f"the body is not valid JSON in UTF-8: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput("the body must be a JSON object")
    return value


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises RequestTooLarge past the cap and HTTPException 408 past the deadline."""
    body = bytearray()
    num_bytes = 0
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            async for chunk in request.stream():
                num_bytes += len(chunk)
                if num_bytes <= max_bytes:
                    body += chunk
                elif num_bytes > _MAX_DISCARDED_BYTES:
                    break
                else:  # read on without keeping it: most clients look for an answer only after sending
                    body.clear()
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {_READ_TIMEOUT_S:g} s") from None
    if num_bytes > max_bytes:
        raise RequestTooLarge(f"the body is larger than {max_bytes} bytes; send a shorter prompt")
    return bytes(body)
