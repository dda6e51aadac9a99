"""How a single token is spelled for a client: its text where it has one, its bytes where it is part of a character."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # SentencePiece's byte fallback
_SPACE = "\u2581"  # SentencePiece writes it for a space


@dataclass(frozen=True, slots=True)
class TokenText:
    """One token. `raw` is None for control tokens, which stand in no text; `text` is then the vocabulary's name."""

    token_id: int
    text: str  # bytes that are no text of their own are escaped: \\xf0\\x9f
    raw: bytes | None
    is_fragment: bool = False  # the bytes are no text of their own

    @classmethod
    def of_bytes(cls, token_id: int, raw: bytes) -> TokenText:
        try:
            return cls(token_id, raw.decode(), raw)
        except UnicodeDecodeError:
            return cls(token_id, "".join(f"\\x{byte:02x}" for byte in raw), raw, is_fragment=True)


def bytes_of_piece(piece: str) -> bytes:
    """What a piece of a vocabulary that is not byte-level adds to the text."""
    match = _BYTE_TOKEN.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace(_SPACE, " ").encode()
