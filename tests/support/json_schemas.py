"""JSON schemas as tests read them: what is wrong with a value, and values that are right.

Knows the part of JSON Schema 2020-12 that our OpenAPI document uses and refuses to guess at any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list, tuple),
    "object": (dict,),
}
_KNOWN = {
    *("$ref", "anyOf", "oneOf", "enum", "const", "type", "properties", "required", "additionalProperties", "items"),
    *("minimum", "exclusiveMinimum", "maximum", "maxItems", "pattern", "description", "default", "title"),
}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@dataclass(frozen=True, slots=True)
class Document:
    """An OpenAPI document."""

    content: Json

    def resolve(self, schema: Json) -> Json:
        unknown = schema.keys() - _KNOWN
        assert not unknown, f"the schema uses {unknown}, which this reader does not know"
        while "$ref" in schema:
            schema = self.content["components"]["schemas"][schema["$ref"].removeprefix("#/components/schemas/")]
        return schema

    def operations(self) -> Iterator[tuple[str, str, Json]]:
        """Each (method, path, operation)."""
        for path, methods in self.content["paths"].items():
            for method, operation in methods.items():
                yield method.upper(), path, operation

    def body_schema(self, path: str) -> Json:
        schema: Json = self.content["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return schema

    def problems(self, value: Any, schema: Json, *, where: str = "", is_closed: bool = False) -> list[str]:
        """What is wrong with `value`, one line each; `is_closed` takes no field that the schema does not name."""
        schema = self.resolve(schema)
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            tries = [self.problems(value, branch, where=where, is_closed=is_closed) for branch in branches]
            return [] if [] in tries else [f"{where}: no branch fits: {tries}"]
        if "enum" in schema and not any(_is_same(value, allowed) for allowed in schema["enum"]):
            return [f"{where}: {value!r} is none of {schema['enum']}"]
        if "const" in schema and not _is_same(value, schema["const"]):
            return [f"{where}: {value!r} is not {schema['const']!r}"]
        if "type" in schema and not _has_type(value, schema["type"]):
            return [f"{where}: {value!r} is no {schema['type']}"]
        return [*_bound_problems(value, schema, where), *self._inner_problems(value, schema, where, is_closed)]

    def _inner_problems(self, value: Any, schema: Json, where: str, is_closed: bool) -> Iterator[str]:
        if isinstance(value, (list, tuple)) and "items" in schema:
            for number, item in enumerate(value):
                yield from self.problems(item, schema["items"], where=f"{where}.{number}", is_closed=is_closed)
        if isinstance(value, dict) and "properties" in schema:
            yield from (f"{where}.{name}: missing" for name in schema.get("required", ()) if name not in value)
            for name, item in value.items():
                if name in schema["properties"]:
                    inner = schema["properties"][name]
                    yield from self.problems(item, inner, where=f"{where}.{name}", is_closed=is_closed)
                elif is_closed or schema.get("additionalProperties", True) is False:
                    yield f"{where}.{name}: unknown"

    def values(self, schema: Json) -> st.SearchStrategy[Any]:
        """Values that fit `schema`, small ones."""
        schema = self.resolve(schema)
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            return st.one_of([self.values(branch) for branch in branches])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "const" in schema:
            return st.just(schema["const"])
        match schema.get("type"):
            case "array":
                longest = min(4, schema.get("maxItems", 4))
                return st.lists(self.values(schema.get("items", {})), max_size=longest)
            case "object" if "properties" in schema:
                return self._objects(schema["properties"], schema.get("required", ()))
            case "integer":
                lowest = schema.get("minimum")
                small = st.integers(-2 if lowest is None else lowest, 9)
                return small | st.integers(lowest, schema.get("maximum"))
            case "number":
                lowest = schema.get("minimum", schema.get("exclusiveMinimum"))
                drawn = st.floats(lowest, schema.get("maximum"), allow_nan=False, allow_infinity=False)
                return st.just(1.0) | drawn.filter(lambda value: value != schema.get("exclusiveMinimum"))
            case "string":
                return st.from_regex(schema["pattern"], fullmatch=True) if "pattern" in schema else st.text(max_size=20)
            case "boolean":
                return st.booleans()
            case "null":
                return st.none()
        return ANY_JSON

    def _objects(self, properties: Mapping[str, Json], required: Any) -> st.SearchStrategy[Json]:
        needed = {name: self.values(properties[name]) for name in required}
        others = sorted(properties.keys() - needed.keys())

        @st.composite
        def draw_object(draw: st.DrawFn) -> Json:
            chosen = draw(st.lists(st.sampled_from(others), max_size=4, unique=True)) if others else []
            fields = needed | {name: self.values(properties[name]) for name in chosen}
            return {name: draw(values) for name, values in fields.items()}

        return draw_object()


def _has_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _is_same(value: Any, allowed: Any) -> bool:
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)


def _bound_problems(value: Any, schema: Json, where: str) -> Iterator[str]:
    if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{where}: {value} is out of bounds"
    if isinstance(value, (int, float)) and value <= schema.get("exclusiveMinimum", value - 1):
        yield f"{where}: {value} is out of bounds"
    if isinstance(value, (list, tuple)) and len(value) > schema.get("maxItems", len(value)):
        yield f"{where}: {len(value)} items are too many"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{where}: {value!r} does not match"
