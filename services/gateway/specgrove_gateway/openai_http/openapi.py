"""The OpenAPI 3.1 document, made from the table of operations, the pydantic bodies and the shapes of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from specgrove.sampling.params import MAX_SEED, MAX_TOP_K
from specgrove.version import VERSION
from specgrove_gateway.openai_http.answer_shapes import ErrorAnswer
from specgrove_gateway.openai_http.answers import Json
from specgrove_gateway.openai_http.operations import ERRORS, Operation

_REF = "#/components/schemas/{model}"
# What `SamplingParams`, `StopConditions` and the request builder check for both faces; a test holds them against it.
BOUNDS: dict[str, Json] = {
    "temperature": {"minimum": 0, "maximum": 100},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": 0, "maximum": MAX_TOP_K},
    "min_p": {"minimum": 0, "maximum": 1},
    "seed": {"minimum": 0, "maximum": MAX_SEED},
    "max_tokens": {"minimum": 1},
    "max_completion_tokens": {"minimum": 1},
    "priority": {"minimum": -(2**31), "maximum": 2**31 - 1},
}


def build_document(operations: Sequence[Operation]) -> Json:
    """The document of `operations`, as plain JSON."""
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "specgrove",
            "version": VERSION,
            "description": "OpenAI-compatible text generation with tree-based speculative inference.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": _schemas(operations)},
    }


def _schemas(operations: Sequence[Operation]) -> Json:
    used: list[type[BaseModel] | None] = [ErrorAnswer]
    for operation in operations:
        used += [operation.body, operation.answer, operation.event]
    models = list(dict.fromkeys(model for model in used if model is not None))
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    schemas: Json = definitions["$defs"]
    for operation in operations:
        if operation.body is not None:
            _add_bounds(schemas[operation.body.__name__])
            _add_unread_fields(schemas[operation.body.__name__], operation)
    return {name: _without_titles(schema) for name, schema in sorted(schemas.items())}


def _add_bounds(schema: Json) -> None:
    for name, bounds in BOUNDS.items():
        for branch in schema["properties"].get(name, {}).get("anyOf", ()):
            if branch["type"] != "null":
                branch.update(bounds)


def _add_unread_fields(schema: Json, operation: Operation) -> None:
    """Fields that no body model has: those taken with the values that ask for nothing, and hints."""
    properties: Json = schema["properties"]
    for name, no_ops in operation.neutral.items():
        properties.setdefault(name, {"enum": [*no_ops, None], "description": "Not supported: taken as a no-op only."})
    for name in operation.hints:
        properties.setdefault(name, {"description": "A hint that changes no answer."})


def _operation(operation: Operation) -> Json:
    described: Json = {"operationId": operation.operation_id, "summary": operation.summary}
    parameters = _parameters(operation)
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(operation.body)}},
        }
    described["responses"] = {"200": _answer(operation)}
    for status in sorted(operation.errors):
        described["responses"][str(status)] = _error(status)
    return described


def _parameters(operation: Operation) -> list[Json]:
    parameters: list[Json] = []
    if "{model_id}" in operation.path:
        parameters.append({"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}})
    if operation.event is not None:
        parameters.append(
            {
                "name": "x-session-id",
                "in": "header",
                "description": "The session, as the field `session_id` names it.",
                "schema": {"type": "string", "pattern": "^[A-Za-z0-9_.:@-]{1,128}$"},
            }
        )
    return parameters


def _answer(operation: Operation) -> Json:
    schema = {} if operation.answer is None else _ref(operation.answer)
    if operation.media_type != "application/json":
        schema = {"type": "string"}
    answer: Json = {"description": operation.summary, "content": {operation.media_type: {"schema": schema}}}
    if operation.event is not None:
        answer["content"]["text/event-stream"] = {
            "schema": {
                "type": "string",
                "description": "With `stream: true`: events `data: <chunk>`, then `data: [DONE]`. An error after the "
                "first byte is an event with an error body, and no `[DONE]` follows.",
            },
            "x-event-schema": {"anyOf": [_ref(operation.event), _ref(ErrorAnswer)]},
        }
    if operation.headers:
        answer["headers"] = {name: _header(text) for name, text in operation.headers.items()}
    return answer


def _error(status: int) -> Json:
    described: Json = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": _ref(ErrorAnswer)}},
    }
    if status == 429:
        described["headers"] = {"retry-after": _header("Seconds until it is worth trying again.")}
    return described


def _header(description: str) -> Json:
    return {"description": description, "schema": {"type": "string"}}


def _ref(model: type[BaseModel]) -> Json:
    return {"$ref": _REF.format(model=model.__name__)}


def _without_titles(schema: Any) -> Any:
    """Without the titles that pydantic makes from names, and without null as the default of what may be absent."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if not (name == "title" and isinstance(value, str))}
    if "default" in kept and kept["default"] is None:
        del kept["default"]
    return {name: _without_titles(value) for name, value in kept.items()}
