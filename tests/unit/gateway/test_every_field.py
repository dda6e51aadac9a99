"""The README's table of every field, held against the bodies, OpenAI's own types and the gRPC request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params as openai_completion
from openai.types.chat import completion_create_params as openai_chat
from pydantic import BaseModel

from specgrove.errors import InvalidInput
from specgrove.proto.v1 import gateway_pb2
from specgrove_gateway.openai_http.neutral_fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL, HINTS
from specgrove_gateway.openai_http.requests import (
    ChatBody,
    CompletionBody,
    HttpRequest,
    MessageBody,
    SpeculationBody,
    StreamOptionsBody,
    TextPart,
    parse_chat,
    parse_completion,
)

ROOT = Path(__file__).parents[3]
HEADING = "## Every field"
MESSAGES = [{"role": "user", "content": "Hi"}]
# Inner objects, and the fields of theirs that can say one thing only.
NESTED: dict[str, type[BaseModel]] = {
    "messages[].": MessageBody,
    "messages[].content[].": TextPart,
    "stream_options.": StreamOptionsBody,
    "speculation.": SpeculationBody,
}
EMPTY_ONLY = {
    "stream_options.include_obfuscation",
    *(f"messages[].{name}" for name in MessageBody.model_fields if name not in ("role", "content")),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    field: str
    is_extension: bool
    of: str
    grpc: tuple[str, ...]
    kind: str
    test: str


def read_rows() -> list[Row]:
    section = (ROOT / "services/gateway/README.md").read_text().partition(HEADING)[2].partition("\n## ")[0]
    lines = [line.strip().strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    rows = []
    for field, of, grpc, kind, _, test in lines:
        names = () if grpc.strip() == "-" else tuple(name.strip(" `") for name in grpc.split(","))
        rows.append(Row(field.strip(" `\\*"), "\\*" in field, of.strip(), names, kind.strip(), test.strip(" `")))
    return rows


ROWS = read_rows()
BY_NAME = {row.field: row for row in ROWS}


def expected_fields() -> dict[str, tuple[str, str]]:
    """Every field that a body may hold: which request has it, and what it is here."""
    chat = dict.fromkeys(ChatBody.model_fields, "honoured") | dict.fromkeys(CHAT_NEUTRAL, "no-op")
    completion = dict.fromkeys(CompletionBody.model_fields, "honoured") | dict.fromkeys(COMPLETION_NEUTRAL, "no-op")
    chat |= dict.fromkeys(HINTS, "hint")
    completion |= dict.fromkeys(HINTS, "hint")
    fields = {}
    for name in {*chat, *completion}:
        of = "both" if name in chat and name in completion else "chat" if name in chat else "completions"
        assert chat.get(name, completion.get(name)) == completion.get(name, chat.get(name)), name
        fields[name] = (of, chat.get(name) or completion[name])
    for prefix, model in NESTED.items():
        of = fields[prefix.partition("[")[0].partition(".")[0]][0]
        for name in model.model_fields:
            fields[prefix + name] = (of, "no-op" if prefix + name in EMPTY_ONLY else "honoured")
    return fields


def test_the_table_has_every_field_of_the_bodies_once_and_says_what_it_is() -> None:
    assert len(ROWS) == len(BY_NAME), "a field has two rows"
    assert {row.field: (row.of, row.kind) for row in ROWS} == expected_fields()


@pytest.mark.parametrize(("params", "of"), [(openai_chat, "chat"), (openai_completion, "completions")])
def test_every_field_of_openai_is_in_the_table_and_the_others_are_marked(params: Any, of: str) -> None:
    official = {*params.CompletionCreateParamsBase.__annotations__, "stream"}
    ours = {row.field for row in ROWS if row.of in (of, "both") and "." not in row.field}
    assert official <= ours, f"OpenAI has {sorted(official - ours)}"
    both = {*openai_chat.CompletionCreateParamsBase.__annotations__, "stream"}
    both |= set(openai_completion.CompletionCreateParamsBase.__annotations__)
    for row in ROWS:
        assert row.is_extension == (row.field.partition(".")[0].partition("[")[0] not in both), row.field


def test_every_field_of_grpc_is_in_the_table_and_every_named_one_exists() -> None:
    descriptor = gateway_pb2.GenerateRequest.DESCRIPTOR
    named = {name for row in ROWS for name in row.grpc}
    assert {field.name for field in descriptor.fields} == {name for name in named if "." not in name}
    for name in named:
        message = descriptor
        for part in name.split("."):
            assert part in message.fields_by_name, name
            message = message.fields_by_name[part].message_type


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.field)
def test_the_named_test_exists(row: Row) -> None:
    path, _, name = row.test.partition("::")
    assert f"def {name}(" in (ROOT / "tests" / path).read_text()


def parse(of: str, **fields: Any) -> HttpRequest:
    if of == "completions":
        return parse_completion({"prompt": "Hi", **fields}, None)
    return parse_chat({"messages": MESSAGES, **fields}, None)


def cases(of: str, neutral: dict[str, tuple[Any, ...]]) -> list[tuple[str, str, tuple[Any, ...]]]:
    return [(of, name, no_ops) for name, no_ops in neutral.items()]


@pytest.mark.parametrize(
    ("of", "name", "no_ops"), [*cases("chat", CHAT_NEUTRAL), *cases("completions", COMPLETION_NEUTRAL)]
)
def test_an_unsupported_field_is_taken_with_its_no_op_values_and_else_refused_by_name(
    of: str, name: str, no_ops: tuple[Any, ...]
) -> None:
    plain = parse(of)
    for value in (*no_ops, None):
        assert parse(of, **{name: value}) == plain
    for value in ("surprise", [None], {"type": "surprise"}, 2, -1.5):
        with pytest.raises(InvalidInput, match=name) as raised:
            parse(of, **{name: value})
        assert raised.value.field == name


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize("value", ["me", 3, {"a": ["b"]}, [None], None, True])
@pytest.mark.parametrize("of", ["chat", "completions"])
def test_hints_are_taken_whatever_they_say(of: str, name: str, value: Any) -> None:
    assert parse(of, **{name: value}) == parse(of)


def test_what_an_echoed_message_carries_is_taken_empty_only() -> None:
    names = [name.removeprefix("messages[].") for name in EMPTY_ONLY if name.startswith("messages[].")]
    echoed = {"role": "assistant", "content": "Hi", **dict.fromkeys(names)}
    assert parse_chat({"messages": [echoed]}, None) == parse_chat(
        {"messages": [{"role": "assistant", "content": "Hi"}]}, None
    )
    for name in names:
        with pytest.raises(InvalidInput) as raised:
            parse_chat({"messages": [{**echoed, name: ["x"]}]}, None)
        assert (raised.value.field or "").startswith(f"messages.0.{name}")


def test_obfuscation_is_taken_switched_off_only() -> None:
    for value in (None, False):
        parse("chat", stream=True, stream_options={"include_obfuscation": value})
    with pytest.raises(InvalidInput) as raised:
        parse("chat", stream=True, stream_options={"include_obfuscation": True})
    assert raised.value.field == "stream_options.include_obfuscation"


def test_max_completion_tokens_is_max_tokens() -> None:
    assert parse("chat", max_completion_tokens=7).client.max_tokens == 7
    assert parse("chat", max_completion_tokens=7, max_tokens=7).client.max_tokens == 7
    assert parse("chat", max_completion_tokens=7, max_tokens=None).client.max_tokens == 7
    with pytest.raises(InvalidInput) as raised:
        parse("chat", max_completion_tokens=7, max_tokens=8)
    assert raised.value.field == "max_tokens"
