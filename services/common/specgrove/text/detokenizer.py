"""Token ids in, text out as early as it is certain: never half a character, and the pieces join to the whole.

Two ways, chosen by the tokenizer:

* `ByteDecoder` for byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM...): each token is bytes, and an incremental
  UTF-8 decoder keeps at most three of them back. Linear, and equal to decoding everything at once even for invalid
  bytes (both replace maximal subparts).
* `WindowDecoder` for the others (SentencePiece with byte fallback...): decode a short window with the tokenizer itself
  and release what grew, unless it ends in a replacement character that the next token may still complete.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"
_MAX_OPEN_TOKENS = 16  # a character has at most four bytes; a longer run of replacements is not going to heal


def byte_of_char() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in table.values())
    table.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return table


class TokenDecoder(Protocol):
    """One way of turning a stream of ids into text."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class ByteDecoder:
    """Text of a byte-level vocabulary. `bytes_of` gives the bytes of an id (empty: nothing to show)."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._bytes_of(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """Text of any vocabulary. `decode` is the tokenizer's own decoding of a list of ids."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []  # ids of the last released piece, then those not released yet
        self._num_released = 0  # leading ids of the window whose text is out
        self._released_text = ""  # their text, decoded at the start of the window

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        num_open = len(self._window) - self._num_released
        if text.endswith(_REPLACEMENT) and num_open <= _MAX_OPEN_TOKENS:
            return ""
        return self._release(text)

    def finish(self) -> str:
        return self._release(self._decode(self._window))

    def _release(self, text: str) -> str:
        piece = text[len(self._released_text) :]
        if piece:  # an id without text (special, skipped) must not become the whole context of the next one
            self._window = self._window[self._num_released :]
            self._num_released = len(self._window)
            self._released_text = self._decode(self._window)
        return piece


class IncrementalDetokenizer:
    """The text of one output, piece by piece."""

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that became certain with `token_ids`; never half a character."""
        return "".join([self._decoder.push(token_id) for token_id in token_ids])

    def finish(self) -> str:
        """What is left: an unfinished character, as the replacement character."""
        return self._decoder.finish()
