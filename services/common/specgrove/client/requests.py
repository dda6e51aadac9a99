"""What a caller asks, as messages; what the gateway cannot even be sent is refused here, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from specgrove.errors import InvalidInput
from specgrove.proto.v1 import gateway_pb2
from specgrove.sampling.params import SpeculationOptions
from specgrove.wire import speculation_to_proto


class Message(TypedDict):
    """One turn of a conversation."""

    role: str  # system, user or assistant
    content: str


class GenerateOptions(TypedDict, total=False):
    """What may be said of a generation besides its prompt; what is missing or None is the gateway's default."""

    model: str | None
    session_id: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None  # token id -> bias
    max_tokens: int | None
    min_tokens: int | None
    ignore_eos: bool | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    speculation: SpeculationOptions | bool | None  # False: no draft work is done
    priority: int | None  # the lower goes first
    timeout_s: float | None  # of the whole answer; None: the client's


def generate_request(
    prompt: str | None,
    messages: Sequence[Message] | None,
    token_ids: Sequence[int] | None,
    options: Mapping[str, Any],
) -> gateway_pb2.GenerateRequest:
    """The request. Raises InvalidInput that names the field for what no message can hold."""
    unknown = sorted(options.keys() - GenerateOptions.__annotations__.keys())
    if unknown:
        raise InvalidInput(f"{unknown[0]} is no option of a generation", field=unknown[0])
    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    fields.pop("timeout_s", None)
    if "stop" in fields and isinstance(fields["stop"], str):
        fields["stop"] = [fields["stop"]]
    if "speculation" in fields:
        asked = fields["speculation"]
        chosen = SpeculationOptions(is_enabled=asked) if isinstance(asked, bool) else asked
        fields["speculation"] = speculation_to_proto(chosen)
    inputs = {"prompt": prompt, "messages": messages, "token_ids": token_ids}
    name, value = _only(inputs)
    if name == "token_ids":
        value = _filled(gateway_pb2.TokenIds(), {"ids": value}, called="token_ids")
    elif name == "messages":
        name, value = "chat", _chat(value)
    return _filled(gateway_pb2.GenerateRequest(), {name: value, **fields})


def tokenize_request(
    prompt: str | None, messages: Sequence[Message] | None, options: Mapping[str, Any]
) -> gateway_pb2.TokenizeRequest:
    """The request. Raises InvalidInput as `generate_request` does."""
    name, value = _only({"prompt": prompt, "messages": messages})
    if name == "messages":
        name, value = "chat", _chat(value)
    given = {option: chosen for option, chosen in options.items() if chosen is not None}
    return _filled(gateway_pb2.TokenizeRequest(return_token_strs=True), {name: value, **given})


def detokenize_request(token_ids: Sequence[int], model: str | None) -> gateway_pb2.DetokenizeRequest:
    """The request. Raises InvalidInput as `generate_request` does."""
    return _filled(gateway_pb2.DetokenizeRequest(), {"token_ids": token_ids, "model": model or ""})


def _only(inputs: Mapping[str, Any]) -> tuple[str, Any]:
    given = [(name, value) for name, value in inputs.items() if value is not None]
    if len(given) != 1:
        raise InvalidInput(f"give one of {', '.join(inputs)}; {len(given)} were given", field=next(iter(inputs)))
    return given[0]


def _chat(messages: Sequence[Message]) -> gateway_pb2.ChatMessages:
    turns = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidInput(f"messages.{number} must be a mapping with role and content", field=f"messages.{number}")
        turns.append(_filled(gateway_pb2.ChatMessage(), message, called=f"messages.{number}"))
    return gateway_pb2.ChatMessages(messages=turns)


_MessageT = TypeVar("_MessageT", bound=Any)


def _filled(message: _MessageT, fields: Mapping[str, Any], *, called: str | None = None) -> _MessageT:
    """`message` with `fields`, set one by one so that a wrong one can be named."""
    for name, value in fields.items():
        try:
            message.MergeFrom(type(message)(**{name: value}))
        except (TypeError, ValueError) as error:
            field = called or name
            raise InvalidInput(f"{field} cannot be sent: {error}", field=field) from error
    return message
