"""Gateway messages to our values and back."""

from __future__ import annotations

from collections.abc import Sequence

from specgrove.errors import InvalidInput
from specgrove.outcome import FinishReason, SpeculationStats, TokenLogprobs
from specgrove.proto.v1 import gateway_pb2, generation_pb2, verifier_pb2
from specgrove.sampling.params import check_num_biases
from specgrove.sampling.seeds import choice_seed
from specgrove.text import ChatMessage
from specgrove.wire import (
    finish_reason_to_proto,
    logprobs_from_proto,
    logprobs_to_proto,
    sampling_to_proto,
    speculation_from_proto,
    speculation_to_proto,
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
from specgrove_gateway.verifier_pool import VerifierInfo

_FINISH_REASONS = {finish_reason_to_proto(reason): reason for reason in FinishReason}
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
            turns = []
            for turn in message.chat.messages:
                if turn.role not in ("system", "user", "assistant"):
                    raise InvalidInput(
                        f"chat: role {turn.role[:50]!r} is unknown; use system, user or assistant", field="chat"
                    )
                turns.append(ChatMessage(turn.role, turn.content))
            return ChatPrompt(tuple(turns)), "chat"
        case "token_ids":
            return TokenPrompt(tuple(message.token_ids.ids)), "token_ids"
    raise InvalidInput("prompt is missing: set one of prompt, chat and token_ids", field="prompt")


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
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        stop_string=message.stop_string,
        stats=_stats_from_proto(message.stats) if message.HasField("stats") else None,
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


def _stats_from_proto(message: generation_pb2.SpeculationStats) -> SpeculationStats:
    return SpeculationStats(
        num_steps=message.num_steps,
        num_drafts=message.num_drafts,
        num_draft_tokens=message.num_draft_tokens,
        num_accepted_tokens=message.num_accepted_tokens,
        num_committed_tokens=message.num_committed_tokens,
        accepted_per_pos=list(message.accepted_per_pos),
        drafted_per_pos=list(message.drafted_per_pos),
        prefill_s=message.prefill_s,
        decode_s=message.decode_s,
    )
