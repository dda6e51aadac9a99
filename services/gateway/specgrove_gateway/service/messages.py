"""Gateway messages to our values and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgrove.errors import InvalidInput
from specgrove.outcome import TokenLogprobs
from specgrove.proto.v1 import gateway_pb2, generation_pb2, verifier_pb2
from specgrove.sampling.params import check_num_biases
from specgrove.sampling.seeds import choice_seed
from specgrove.text import ChatMessage
from specgrove.wire import (
    finish_reason_from_proto,
    finish_reason_to_proto,
    logprobs_from_proto,
    logprobs_to_proto,
    sampling_to_proto,
    speculation_from_proto,
    speculation_to_proto,
    stats_from_proto,
    stats_to_proto,
    stop_to_proto,
)
from specgrove_gateway.generation import (
    ChatPrompt,
    ChoiceEvent,
    ClientRequest,
    Delta,
    Echo,
    Finished,
    GenerationRequest,
    Prompt,
    ScoredToken,
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
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "n",
)


def client_request_from_proto(message: gateway_pb2.GenerateRequest) -> ClientRequest:
    """What the client asked. Raises InvalidInput when no input is set or a role is unknown."""
    prompt, prompt_field = _prompt(message)
    check_num_biases(len(message.logit_bias))
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
        logit_bias=tuple(sorted(message.logit_bias.items())),
        echo=message.echo,
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


def event_to_proto(request: GenerationRequest, choice: ChoiceEvent) -> gateway_pb2.GenerateResponse:
    """One message of the answer's stream."""
    event = choice.event
    message = gateway_pb2.GenerateResponse(
        request_id=request.request_id, session_id=request.session_id, index=choice.index
    )
    if isinstance(event, Echo):
        message.echo.text = event.text
        message.echo.token_ids.extend(event.token_ids)
        message.echo.logprobs.extend(_scored_to_proto(event.logprobs[1:]))
        return message
    message.text = event.text
    message.token_ids.extend(event.token_ids)
    message.logprobs.extend(_scored_to_proto(event.logprobs))
    match event:
        case Delta():
            pass
        case Finished():
            message.finish_reason = finish_reason_to_proto(event.finish_reason)
            message.usage.prompt_tokens = event.usage.prompt_tokens
            message.usage.completion_tokens = event.usage.completion_tokens
            message.stats.CopyFrom(stats_to_proto(event.stats))
            message.seed = choice_seed(request.sampling.seed, choice.index)
    return message


def _scored_to_proto(tokens: Sequence[ScoredToken]) -> list[generation_pb2.TokenLogprobs]:
    return logprobs_to_proto(
        [
            TokenLogprobs(scored.logprob or 0.0, tuple((token.token_id, value) for token, value in scored.top))
            for scored in tokens
        ]
    )


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
        top_logprobs=request.top_logprobs,
        prompt_logprobs=request.wants_prompt_logprobs and not committed,
    )


def step_from_proto(message: verifier_pb2.VerifierGenerateResponse) -> TokenStep:
    return TokenStep(
        token_ids=tuple(message.token_ids),
        epoch=message.epoch,
        finish_reason=finish_reason_from_proto(message.finish_reason),
        stop_string=message.stop_string,
        stats=stats_from_proto(message.stats) if message.HasField("stats") else None,
        logprobs=logprobs_from_proto(message.logprobs),
        prompt_logprobs=logprobs_from_proto(message.prompt_logprobs),
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
