"""From what a client asked to a request that any verifier of the pool can run: the checks of both faces, once."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from specgrove.errors import ContextTooLong, InvalidInput, ModelNotFound, PeerUnavailable
from specgrove.sampling.params import MAX_CHOICES, SamplingParams, StopConditions
from specgrove.text import Tokenizer
from specgrove_gateway.generation import (
    ChatPrompt,
    ClientRequest,
    Company,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from specgrove_gateway.prompt_reader import PromptReader

_SEED_BITS = 53  # a drawn seed survives a JSON reader that keeps numbers as doubles
_MAX_PRIORITY = 2**31 - 1  # travels as a 32-bit integer
_SESSION_ID = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")  # safe as a Redis key and as an HTTP header


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the served model can take, as its verifiers describe it."""

    max_context_len: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as clients see it listed."""

    model_id: str
    limits: ModelLimits | None


class RequestBuilder:
    """Builds checked requests. `limits` gives the current limits or raises PeerUnavailable."""

    def __init__(self, tokenizer: Tokenizer, model_name: str, limits: Callable[[], ModelLimits]) -> None:
        self._tokenizer = tokenizer
        self._reader = PromptReader(tokenizer)
        self._model_name = model_name
        self._limits = limits

    async def build(self, client: ClientRequest) -> GenerationRequest:
        """The request. Raises InvalidInput (naming the field), ModelNotFound, or PeerUnavailable without a verifier."""
        if client.model:
            self.check_model(client.model)
        session_id = _session_id(client.session_id)
        sampling = _sampling(client)
        _refuse_empty(client)
        _priority(client)
        _check_top_logprobs(client)
        num_choices = _num_choices(client)
        # Conditions that need no token count are checked before the prompt is tokenised.
        _stop_conditions(client, max_tokens=_asked_max_tokens(client) or max(1, client.min_tokens or 0))
        limits = self._limits()
        check_ids(client.stop_token_ids, limits.vocab_size, "stop_token_ids")
        check_ids(tuple(token_id for token_id, _ in client.logit_bias), limits.vocab_size, "logit_bias")
        prompt_token_ids = await self._prompt_ids(client)
        max_tokens = _max_tokens(client, len(prompt_token_ids), limits.max_context_len)
        check_ids(prompt_token_ids, limits.vocab_size, client.prompt_field)  # no more of them than the context holds
        return GenerationRequest(
            request_id=uuid.uuid4().hex,
            session_id=session_id,
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            stop=_stop_conditions(client, max_tokens=max_tokens),
            speculation=client.speculation,
            priority=_priority(client),
            is_new_session=not client.session_id,
            top_logprobs=client.top_logprobs,
            echo_text=self._echo_text(client, prompt_token_ids),
            num_choices=num_choices,
            company=Company() if num_choices > 1 else None,
        )

    def check_model(self, model: str) -> None:
        """Raises ModelNotFound for another model than the served one."""
        if model != self._model_name:
            raise ModelNotFound(f"model {model[:100]!r} is not served here; this gateway serves {self._model_name!r}")

    def served_model(self) -> ServedModel:
        """The model this gateway serves, for listings; its limits are None until a verifier has answered."""
        try:
            limits = self._limits()
        except PeerUnavailable:
            limits = None
        return ServedModel(self._model_name, limits)

    async def _prompt_ids(self, client: ClientRequest) -> tuple[int, ...]:
        prompt = client.prompt
        if isinstance(prompt, TokenPrompt):
            return prompt.token_ids
        ids = await self._reader.ids(prompt, client.prompt_field)
        if not ids:
            raise InvalidInput(_empty_message(client), field=client.prompt_field)
        return tuple(ids)

    def _echo_text(self, client: ClientRequest, prompt_token_ids: tuple[int, ...]) -> str | None:
        if not client.echo:
            return None
        match client.prompt:
            case TextPrompt(text):
                return text
            case TokenPrompt():
                return self._tokenizer.decode(prompt_token_ids)
            case ChatPrompt():
                raise InvalidInput("echo is for prompts; a chat has none to show", field="echo")


def _is_empty(prompt: Prompt) -> bool:
    match prompt:
        case TextPrompt(text):
            return not text
        case ChatPrompt(messages):
            return not any(message.content for message in messages)
        case TokenPrompt(token_ids):
            return not token_ids


def _refuse_empty(client: ClientRequest) -> None:
    if _is_empty(client.prompt):
        raise InvalidInput(_empty_message(client), field=client.prompt_field)


def _empty_message(client: ClientRequest) -> str:
    return f"{client.prompt_field} is empty: there is nothing to continue"


def _session_id(asked: str | None) -> str:
    if not asked:
        return uuid.uuid4().hex
    if not _SESSION_ID.fullmatch(asked):
        raise InvalidInput("session_id must be 1 to 128 of the characters A-Z a-z 0-9 _ . : @ -", field="session_id")
    return asked


def _priority(client: ClientRequest) -> int:
    if not -_MAX_PRIORITY - 1 <= client.priority <= _MAX_PRIORITY:
        raise InvalidInput(
            f"priority must be between {-_MAX_PRIORITY - 1} and {_MAX_PRIORITY}, the lower goes first", field="priority"
        )
    return client.priority


def _sampling(client: ClientRequest) -> SamplingParams:
    return SamplingParams(
        temperature=1.0 if client.temperature is None else client.temperature,
        top_p=1.0 if client.top_p is None else client.top_p,
        top_k=client.top_k or 0,
        min_p=client.min_p or 0.0,
        seed=secrets.randbits(_SEED_BITS) if client.seed is None else client.seed,
        repetition_penalty=1.0 if client.repetition_penalty is None else client.repetition_penalty,
        presence_penalty=client.presence_penalty or 0.0,
        frequency_penalty=client.frequency_penalty or 0.0,
        logit_bias=client.logit_bias,
    )


def _check_top_logprobs(client: ClientRequest) -> None:
    name, limit = client.top_logprobs_field, client.max_top_logprobs
    if client.top_logprobs is not None and not 0 <= client.top_logprobs <= limit:
        raise InvalidInput(f"{name} must be between 0 and {limit}, got {client.top_logprobs}", field=name)


def _num_choices(client: ClientRequest) -> int:
    if client.n is None:
        return 1
    if not 1 <= client.n <= MAX_CHOICES:
        raise InvalidInput(f"n must be between 1 and {MAX_CHOICES}, got {client.n}", field="n")
    return client.n


def _asked_max_tokens(client: ClientRequest) -> int | None:
    if client.max_tokens is not None and client.max_tokens < 1:
        name = client.max_tokens_field
        raise InvalidInput(f"{name} must be at least 1, got {client.max_tokens}", field=name)
    return client.max_tokens


def _max_tokens(client: ClientRequest, prompt_len: int, max_context_len: int) -> int:
    room = max_context_len - prompt_len
    if room < 1:
        raise ContextTooLong(
            f"{client.prompt_field} has {prompt_len} tokens; the context holds {max_context_len}, at least one of them "
            "for the answer",
            field=client.prompt_field,
        )
    asked = _asked_max_tokens(client)
    if asked is None:
        return room
    if asked > room:
        name = client.max_tokens_field
        raise ContextTooLong(
            f"{name} {asked} and {prompt_len} prompt tokens do not fit the context of {max_context_len}; "
            f"ask for at most {room}, or leave {name} out",
            field=name,
        )
    return asked


def _stop_conditions(client: ClientRequest, *, max_tokens: int) -> StopConditions:
    return StopConditions(
        max_tokens=max_tokens,
        min_tokens=client.min_tokens or 0,
        ignore_eos=bool(client.ignore_eos),
        stop_token_ids=client.stop_token_ids,
        stop_strings=client.stop,
    )


def check_ids(token_ids: tuple[int, ...], vocab_size: int, field: str) -> None:
    """Raises InvalidInput naming `field` for an id outside of the vocabulary."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidInput(f"{field} holds {wrong}; ids go from 0 to {vocab_size - 1}", field=field)
