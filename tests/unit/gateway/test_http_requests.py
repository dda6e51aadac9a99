"""Hostile bodies are refused in milliseconds: what they cost does not grow with their number of mistakes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specgrove.errors import InvalidInput
from specgrove.telemetry import CollectorRegistry
from specgrove_gateway.metrics import GatewayMetrics
from specgrove_gateway.openai_http.errors import status_name
from specgrove_gateway.openai_http.requests import parse_chat, parse_completion

_MANY = 340_000
_HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]

FLOODS: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": [{}] * _MANY}, "messages.0.role"),
    ({"messages": _HELLO * _MANY}, "messages"),
    ({"messages": [{"role": "user", "content": [{}] * _MANY}]}, "messages.0.content.0.type"),
    ({"messages": [{"role": "user", "content": "", "tool_calls": [1] * _MANY}]}, "messages.0.tool_calls"),
    ({"messages": [{str(n): 1 for n in range(_MANY)}]}, "messages.0"),
    ({"messages": _HELLO, "stop": [1] * _MANY}, "stop.0"),
    ({"messages": _HELLO, "stop": ["x"] * _MANY}, "stop"),
    ({"messages": _HELLO, "stop_token_ids": ["x"] * _MANY}, "stop_token_ids.0"),
    ({"messages": _HELLO, "speculation": {str(n): 1 for n in range(_MANY)}}, "speculation"),
    ({"messages": _HELLO, **{str(n): 1 for n in range(_MANY)}}, None),
]


@pytest.mark.parametrize(("body", "field"), FLOODS, ids=[str(n) for n in range(len(FLOODS))])
def test_a_flood_of_mistakes_costs_little(body: dict[str, Any], field: str | None) -> None:
    started_at = time.process_time()
    with pytest.raises(InvalidInput) as raised:
        parse_chat(body, None)
    assert time.process_time() - started_at < 0.25  # seconds before the bounds
    assert raised.value.field == field
    assert len(raised.value.message) < 1000


def test_a_wrong_token_id_ends_the_reading_of_a_prompt() -> None:
    started_at = time.process_time()
    with pytest.raises(InvalidInput):
        parse_completion({"prompt": [None] * _MANY}, None)
    assert time.process_time() - started_at < 0.25


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ClientDisconnect(), "CANCELLED"),
        (HTTPException(408), "DEADLINE_EXCEEDED"),
        (HTTPException(415), "INVALID_ARGUMENT"),
        (InvalidInput("wrong"), "INVALID_ARGUMENT"),
        (KeyError("bug"), "INTERNAL"),
    ],
)
def test_errors_of_the_http_face_are_counted_by_their_own_status(error: Exception, status: str) -> None:
    registry = CollectorRegistry()
    with pytest.raises(type(error)), GatewayMetrics(registry).count_errors(status_name):
        raise error
    assert registry.get_sample_value("specgrove:request_errors_total", {"status": status}) == 1
