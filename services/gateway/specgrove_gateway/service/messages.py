"""Gateway messages to our values and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgrove.errors import InvalidInput
from specgrove.proto.v1 import gateway_pb2, verifier_pb2
from specgrove.text import ChatMessage
from specgrove.wire import (
    finish_reason_from_proto,
    finish_reason_to_proto,
    sampling_to_proto,
    speculation_from_proto,
    speculation_to_proto,
    stats_from_proto,
    stats_to_proto,
    stop_to_proto,
)
from specgrove_gateway.generation import (
    ChatPrompt,
    ClientRequest,
    Delta,
    Finished,
    GenerationEvent,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    TokenStep,
)
from specgrove_gateway.tokenization import TokenizeRequest
from specgrove_gateway.verifier_pool import VerifierInfo

_OPTIONAL_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
)


def client_request_from_proto(message: gateway_pb2.GenerateRequest) -> ClientRequest:
    """What the client asked. Raises InvalidInput when no input is set or a role is unknown."""
    prompt, prompt_field = _prompt(message)
    given = {name: getattr(message, name) for name in _OPTIONAL_FIELDS if message.HasField(name)}
    return ClientRequest(
        prompt=prompt,
        prompt_field=prompt_field,
        model=message.model or None,
        session_id=message.session_id or None,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        speculation=speculation_from_proto(message.speculation),
        priority=message.priority,
        **given,
    )


def _prompt(message: gateway_pb2.GenerateRequest) -> tuple[Prompt, str]:
    match message.WhichOneof("input"):
        case "prompt":
            return TextPrompt(message.prompt), "prompt"
        case "chat":
            return _chat(message.chat), "chat"
        case "token_ids":
            return TokenPrompt(tuple(message.token_ids.ids)), "token_ids"
    raise InvalidInput("prompt is missing: set one of prompt, chat and token_ids", field="prompt")


def _chat(chat: gateway_pb2.ChatMessages) -> ChatPrompt:
    for turn in chat.messages:
        if turn.role not in ("system", "user", "assistant"):
            raise InvalidInput(f"chat: role {turn.role[:50]!r} is unknown; use system, user or assistant", field="chat")
    return ChatPrompt(tuple(ChatMessage(turn.role, turn.content) for turn in chat.messages))


def tokenize_request_from_proto(message: gateway_pb2.TokenizeRequest) -> TokenizeRequest:
    """What the client wants tokenised. Raises InvalidInput as `client_request_from_proto` does."""
    options: dict[str, Any] = {
        name: getattr(message, name)
        for name in ("add_special_tokens", "add_generation_prompt")
        if message.HasField(name)
    }
    options["model"] = message.model or None
    options["return_token_strs"] = message.return_token_strs
    match message.WhichOneof("input"):
        case "prompt":
            if message.HasField("add_generation_prompt"):
                raise InvalidInput("add_generation_prompt needs a chat", field="add_generation_prompt")
            return TokenizeRequest(TextPrompt(message.prompt), "prompt", **options)
        case "chat":
            return TokenizeRequest(_chat(message.chat), "chat", **options)
    raise InvalidInput("prompt is missing: set one of prompt and chat", field="prompt")


def event_to_proto(request: GenerationRequest, event: GenerationEvent) -> gateway_pb2.GenerateResponse:
    """One message of the answer's stream."""
    message = gateway_pb2.GenerateResponse(
        request_id=request.request_id, session_id=request.session_id, text=event.text, token_ids=event.token_ids
    )
    match event:
        case Delta():
            pass
        case Finished():
            message.finish_reason = finish_reason_to_proto(event.finish_reason)
            message.usage.prompt_tokens = event.usage.prompt_tokens
            message.usage.completion_tokens = event.usage.completion_tokens
            message.stats.CopyFrom(stats_to_proto(event.stats))
            message.seed = request.sampling.seed
    return message


def verifier_request_to_proto(
    request: GenerationRequest, epoch: int, committed: Sequence[int]
) -> verifier_pb2.VerifierGenerateRequest:
    """The call that runs `request` on a verifier, going on after `committed`."""
    return verifier_pb2.VerifierGenerateRequest(
        session_id=request.session_id,
        epoch=epoch,
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        committed_token_ids=committed,
        sampling=sampling_to_proto(request.sampling),
        stop=stop_to_proto(request.stop),
        speculation=speculation_to_proto(request.speculation),
        priority=request.priority,
    )


def step_from_proto(message: verifier_pb2.VerifierGenerateResponse) -> TokenStep:
    return TokenStep(
        token_ids=tuple(message.token_ids),
        epoch=message.epoch,
        finish_reason=finish_reason_from_proto(message.finish_reason),
        stop_string=message.stop_string,
        stats=stats_from_proto(message.stats) if message.HasField("stats") else None,
    )


def info_from_proto(message: verifier_pb2.DescribeResponse) -> VerifierInfo:
    return VerifierInfo(
        verifier_id=message.verifier_id,
        incarnation=message.incarnation,
        model=message.model,
        vocab_hash=message.vocab_hash,
        vocab_size=message.vocab_size,
        max_context_len=message.max_context_len,
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        max_sessions=message.max_sessions,
    )
