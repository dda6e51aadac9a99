"""Prompts to token ids, long ones off the event loop."""

from __future__ import annotations

import asyncio

from specgrove.errors import InvalidInput
from specgrove.text import Tokenizer
from specgrove_gateway.generation import ChatPrompt, TextPrompt

_THREAD_ABOVE_CHARS = 2_000  # about half a millisecond of tokenising; more would be felt by other streams
_MESSAGE_CHARS = 30  # what the template does for a message costs about as much as tokenising so many characters


class PromptReader:
    """Reads what a client wrote as the model will."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    async def ids(
        self,
        prompt: TextPrompt | ChatPrompt,
        prompt_field: str,
        *,
        add_special_tokens: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The ids of `prompt`; None adds special tokens to a text and not to a chat, whose template writes them.

        Raises InvalidInput, naming `prompt_field`, for what cannot be tokenised.
        """

        def tokenize() -> list[int]:
            if isinstance(prompt, ChatPrompt):
                return self._tokenizer.apply_chat_template(
                    prompt.messages,
                    add_generation_prompt=add_generation_prompt,
                    add_special_tokens=bool(add_special_tokens),
                )
            return self._tokenizer.encode(prompt.text, add_special_tokens=add_special_tokens is not False)

        try:
            return await asyncio.to_thread(tokenize) if _num_chars(prompt) > _THREAD_ABOVE_CHARS else tokenize()
        except InvalidInput as error:
            raise InvalidInput(error.message, field=prompt_field) from error


def _num_chars(prompt: TextPrompt | ChatPrompt) -> int:
    if isinstance(prompt, ChatPrompt):
        return sum(_MESSAGE_CHARS + len(message.content) for message in prompt.messages)
    return len(prompt.text)
