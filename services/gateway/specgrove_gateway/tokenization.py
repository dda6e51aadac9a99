"""Text to ids and back for clients, with the very code that reads prompts. Needs no verifier."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from specgrove.text import Tokenizer
from specgrove_gateway.generation import ChatPrompt, TextPrompt
from specgrove_gateway.prompt_reader import PromptReader
from specgrove_gateway.request_builder import RequestBuilder, check_ids

_THREAD_ABOVE_IDS = 500


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """What a client wants tokenised. `add_special_tokens` None means as a generation would have it."""

    prompt: TextPrompt | ChatPrompt
    prompt_field: str  # how the face spells the field, for errors
    model: str | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    """Ids whose text a client wants."""

    token_ids: tuple[int, ...]
    ids_field: str
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The ids of a text. `max_context_len` is None until a verifier has answered."""

    token_ids: tuple[int, ...]
    token_strs: tuple[str, ...] | None
    max_context_len: int | None


class Tokenization:
    """Both directions, the same for both faces."""

    def __init__(self, tokenizer: Tokenizer, builder: RequestBuilder) -> None:
        self._tokenizer = tokenizer
        self._reader = PromptReader(tokenizer)
        self._builder = builder

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """The ids that a generation would read. Raises InvalidInput (naming the field) or ModelNotFound."""
        if request.model:
            self._builder.check_model(request.model)
        ids = await self._reader.ids(
            request.prompt,
            request.prompt_field,
            add_special_tokens=request.add_special_tokens,
            add_generation_prompt=request.add_generation_prompt,
        )
        limits = self._builder.served_model().limits
        return Tokens(
            tuple(ids),
            tuple(map(self._tokenizer.token_str, ids)) if request.return_token_strs else None,
            limits.max_context_len if limits else None,
        )

    async def detokenize(self, request: DetokenizeRequest) -> str:
        """The text of the ids, control tokens included. Raises InvalidInput (naming the field) or ModelNotFound."""
        if request.model:
            self._builder.check_model(request.model)
        limits = self._builder.served_model().limits
        check_ids(request.token_ids, limits.vocab_size if limits else self._tokenizer.vocab_size, request.ids_field)

        def decode() -> str:
            return self._tokenizer.decode(request.token_ids, skip_special=False)

        return await asyncio.to_thread(decode) if len(request.token_ids) > _THREAD_ABOVE_IDS else decode()
