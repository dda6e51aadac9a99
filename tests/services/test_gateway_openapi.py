"""The OpenAPI document says what is there: every route, body and answer; and no body breaks anything."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from specgrove.errors import InvalidInput
from specgrove_gateway.openai_http.app import build_app
from specgrove_gateway.openai_http.openapi import BOUNDS, build_document
from specgrove_gateway.openai_http.operations import OPERATIONS, Operation
from specgrove_gateway.openai_http.requests import parse_chat, parse_completion
from support.gateway import MODEL, RunningGateway, gateway_that_says_hello_world, says_hello_world
from support.json_schemas import ANY_JSON, Document
from support.tiny_tokenizer import write_tiny_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCUMENT = Document(build_document(OPERATIONS))
POSTS = [operation for operation in OPERATIONS if operation.body is not None]
# In-process, a request takes some milliseconds; what is looked for is a kind of body, not a rare race.
FUZZ = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(folder: Path) -> AsyncIterator[RunningGateway]:
    async with gateway_that_says_hello_world(folder) as running:
        yield running


def answer_schema(operation: Operation, status: int, media_type: str = "application/json") -> dict[str, Any]:
    responses = DOCUMENT.content["paths"][operation.path][operation.method.lower()]["responses"]
    assert str(status) in responses, f"{operation.path} answers {status}, which is not documented"
    content: dict[str, Any] = responses[str(status)]["content"][media_type]
    return content.get("x-event-schema") or content["schema"]


def check_headers(operation: Operation, response: httpx.Response, *, but: str = "") -> None:
    """Every documented header is there, and every one of ours is documented."""
    ours = {name for name in response.headers if name.startswith("x-") and name != "x-accel-buffering"}
    documented = {name for name in operation.headers if not but or not name.startswith(but)}
    assert documented <= ours <= set(operation.headers)


async def test_the_document_is_served_as_it_is_built(gateway: RunningGateway) -> None:
    response = await gateway.http.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == DOCUMENT.content
    assert response.json()["openapi"].startswith("3.1")


async def test_every_route_is_documented_and_every_documented_path_answers(gateway: RunningGateway) -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            return lambda request: None

    app = build_app(*(cast(Any, Anything()) for _ in range(3)))
    routes = {
        (method, route.path.replace(":path}", "}"))
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"  # Starlette's addition to GET
    }
    assert routes == {(method, path) for method, path, _ in DOCUMENT.operations()}
    for method, path, _ in DOCUMENT.operations():
        response = await gateway.http.request(method, path.replace("{model_id}", MODEL))
        assert response.status_code not in (404, 405), path


async def test_every_reference_leads_somewhere_and_every_error_has_its_body() -> None:
    text = json.dumps(DOCUMENT.content)
    references = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert references <= set(DOCUMENT.content["components"]["schemas"])
    for _, path, operation in DOCUMENT.operations():
        assert operation["summary"]
        for status, response in operation["responses"].items():
            if status != "200":
                assert response["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorAnswer"), path


EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "n": 1},
        {
            "messages": [{"role": "assistant", "content": "x", "refusal": None}, {"role": "developer", "content": "y"}],
            "temperature": 0.5,
            "stop": ["a", "b"],
            "stop_token_ids": [5],
            "speculation": {"enabled": True, "max_nodes": 3, "rule": "mss", "expansion": [1, 2]},
            "response_format": {"type": "text"},
            "tools": [],
            "metadata": {"a": "b"},
            "user": "me",
        },
    ],
    "/v1/completions": [
        {"prompt": "Hi", "max_tokens": 3, "echo": False},
        {"prompt": [5, 6], "seed": 7, "priority": -1},
        {"prompt": ["Hi"], "top_k": 3, "min_p": 0.1},
        {"prompt": [[5, 6]], "logit_bias": {}},
    ],
    "/tokenize": [
        {"prompt": "Hi", "return_token_strs": True},
        {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False, "tools": []},
    ],
    "/detokenize": [{"tokens": [5, 6], "model": MODEL}, {"tokens": []}],
}


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.operation_id)
async def test_bodies_and_answers_are_as_documented(gateway: RunningGateway, operation: Operation) -> None:
    for body in EXAMPLES[operation.path]:
        assert DOCUMENT.problems(body, DOCUMENT.body_schema(operation.path)) == []
        response = await gateway.http.post(operation.path, json=body)
        assert response.status_code == 200, response.text
        assert DOCUMENT.problems(response.json(), answer_schema(operation, 200), is_closed=True) == []
        check_headers(operation, response)
    for wrong in ({**EXAMPLES[operation.path][0], "tempratures": 1}, {}):
        assert DOCUMENT.problems(wrong, DOCUMENT.body_schema(operation.path)) or operation.path == "/tokenize"
        response = await gateway.http.post(operation.path, json=wrong)
        assert response.status_code == 400
        assert DOCUMENT.problems(response.json(), answer_schema(operation, 400), is_closed=True) == []


@pytest.mark.parametrize("operation", [row for row in POSTS if row.event], ids=lambda row: row.operation_id)
@pytest.mark.parametrize("stream_options", [None, {"include_usage": True}])
async def test_events_of_a_stream_are_as_documented(
    gateway: RunningGateway, operation: Operation, stream_options: Any
) -> None:
    body = {**EXAMPLES[operation.path][0], "stream": True, "stream_options": stream_options}
    assert DOCUMENT.problems(body, DOCUMENT.body_schema(operation.path)) == []
    response = await gateway.http.post(operation.path, json=body)
    events = [event.removeprefix("data: ") for event in response.text.strip().split("\n\n")]
    assert events[-1] == "[DONE]"
    for chunk in events[:-1]:
        schema = answer_schema(operation, 200, "text/event-stream")
        assert DOCUMENT.problems(json.loads(chunk), schema, is_closed=True) == []
    known = {"x-request-id", "x-session-id", "x-specgrove-seed", "x-specgrove-speculation"}
    assert known <= set(response.headers)


@pytest.mark.parametrize(
    "operation",
    [row for row in OPERATIONS if row.method == "GET" and row.answer],
    ids=lambda operation: operation.operation_id,
)
async def test_answers_without_a_body_are_as_documented(gateway: RunningGateway, operation: Operation) -> None:
    response = await gateway.http.get(operation.path.replace("{model_id}", MODEL))
    assert DOCUMENT.problems(response.json(), answer_schema(operation, 200), is_closed=True) == []
    if 404 in operation.errors:
        missing = await gateway.http.get(operation.path.replace("{model_id}", "org/other"))
        assert DOCUMENT.problems(missing.json(), answer_schema(operation, 404), is_closed=True) == []


@pytest.mark.parametrize("operation", [row for row in POSTS if row.event], ids=lambda row: row.operation_id)
async def test_every_documented_field_is_read_and_no_other(operation: Operation) -> None:
    """A field of the document is never an unknown field, and the no-op values of the document ask for nothing."""
    parse = parse_chat if operation.path.endswith("chat/completions") else parse_completion
    base = EXAMPLES[operation.path][0]
    schema = DOCUMENT.resolve(DOCUMENT.body_schema(operation.path))
    for name, field in schema["properties"].items():
        for value in field.get("enum", [None]):
            if name not in schema["required"]:
                parse({**base, name: value}, None)
    with pytest.raises(InvalidInput, match="unknown field"):
        parse({**base, "no_such_field": 1}, None)


@pytest.mark.parametrize(
    ("name", "bound", "value"),
    [(name, bound, value) for name, bounds in BOUNDS.items() for bound, value in bounds.items()],
)
async def test_documented_bounds_are_those_that_hold(
    gateway: RunningGateway, name: str, bound: str, value: Any
) -> None:
    beyond = value if bound == "exclusiveMinimum" else value + 1 if bound == "maximum" else value - 1
    refused = await gateway.chat(**{name: beyond})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name
    assert (await gateway.chat(**{name: 0.001 if bound == "exclusiveMinimum" else value})).status_code == 200


def bodies(operation: Operation) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies that the document allows, and some with a value or a field that it does not."""
    schema = DOCUMENT.body_schema(operation.path)
    names = sorted(DOCUMENT.resolve(schema)["properties"])
    right: st.SearchStrategy[dict[str, Any]] = DOCUMENT.values(schema)
    spoilt = st.builds(lambda body, name, value: {**body, name: value}, right, st.sampled_from(names), ANY_JSON)
    strange = st.builds(lambda body, name, value: {**body, name: value}, right, st.text(), ANY_JSON)
    return right | right | spoilt | strange


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.operation_id)
@FUZZ
@given(drawn=st.data())
async def test_no_body_breaks_anything_and_every_refusal_names_a_field(
    gateway: RunningGateway, operation: Operation, drawn: st.DataObject
) -> None:
    body = drawn.draw(bodies(operation))
    response = await gateway.http.post(operation.path, json=body)
    event(str(response.status_code))
    assert response.status_code < 500, response.text
    if response.status_code == 200:
        assert "event-stream" in response.headers["content-type"] or "error" not in response.json()
        return
    assert DOCUMENT.problems(response.json(), answer_schema(operation, response.status_code), is_closed=True) == []
    named = response.json()["error"]["param"]
    fields = {*body, *DOCUMENT.resolve(DOCUMENT.body_schema(operation.path))["properties"]}
    assert named in fields or named.partition(".")[0] in fields, response.text


async def test_the_gateway_is_well_after_all_of_this(gateway: RunningGateway) -> None:
    assert await says_hello_world(gateway)
    samples = await gateway.metrics()
    assert samples["specgrove:num_requests_running"] == samples["specgrove:num_requests_waiting"] == 0
    assert 'specgrove:request_errors_total{status="INTERNAL"}' not in samples
