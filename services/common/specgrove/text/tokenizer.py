"""The target's tokenizer, read from its model folder with the `tokenizers` library alone (no `transformers`, no torch).

Files, as Hugging Face folders have them: `tokenizer.json` (required), `tokenizer_config.json` (names of the special
tokens, maybe the chat template), `chat_template.jinja`, `generation_config.json` and `config.json` (end of sequence).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from specgrove.errors import InvalidInput, ModelLoadError
from specgrove.text.chat_template import ChatMessage, ChatTemplate
from specgrove.text.detokenizer import ByteDecoder, IncrementalDetokenizer, WindowDecoder, byte_of_char
from specgrove.text.token_text import TokenText, bytes_of_piece

_SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """Text to ids and back. Safe to use from several threads: nothing changes after `load`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: tuple[int, ...] = (),
        chat_template: ChatTemplate | None = None,
    ) -> None:
        backend.no_truncation()  # a folder may carry training-time truncation; a server must never cut silently
        backend.no_padding()
        self._backend = backend
        self._chat_template = chat_template
        self.eos_token_ids = eos_token_ids
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.vocab_hash = _hash_vocab(vocab)
        self._special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._token_bytes = _byte_level_bytes(vocab) if _is_byte_level(backend) else None

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a model folder. Raises ModelLoadError when a file is missing or cannot be read."""
        root = Path(folder)
        path = root / "tokenizer.json"
        if not path.is_file():
            raise ModelLoadError(f"{root} has no tokenizer.json; give the folder of a Hugging Face model with one")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
        settings = _read_json(root / "tokenizer_config.json")
        special_tokens = _special_tokens(settings)
        source = _template_source(root, settings)
        return cls(
            backend,
            eos_token_ids=_eos_token_ids(root, backend, special_tokens),
            chat_template=None if source is None else ChatTemplate(source, special_tokens),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`, with what the model expects around a prompt. Raises InvalidInput for broken Unicode."""
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidInput("text holds half a character (a lone surrogate); send valid Unicode") from error
        return ids

    def apply_chat_template(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,  # a template writes them itself
    ) -> list[int]:
        """The ids of a conversation, ready for the assistant's turn. Raises InvalidInput (field `messages`)."""
        if self._chat_template is None:
            raise InvalidInput("this model has no chat template; send a plain prompt instead", field="messages")
        text = self._chat_template.render(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of `token_ids`; ids without a token (a padded vocabulary) have none."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special)
        return text

    def token_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def token_str(self, token_id: int) -> str:
        """A token as the vocabulary spells it; empty for an id without a token (a padded vocabulary)."""
        return self._backend.id_to_token(token_id) or ""

    def is_special(self, token_id: int) -> bool:
        """True for control tokens, whose text is never shown."""
        return token_id in self._special_ids

    def token_text(self, token_id: int) -> TokenText:
        """One token by itself, as clients are shown it beside its logprob."""
        if self._token_bytes is not None and token_id not in self._special_ids:
            return TokenText.of_bytes(token_id, self._token_bytes.get(token_id, b""))
        piece = self._backend.id_to_token(token_id) or ""  # a padded vocabulary has ids without a token
        if token_id in self._special_ids:
            return TokenText(token_id, piece, None)
        return TokenText.of_bytes(token_id, bytes_of_piece(piece))

    def detokenizer(self) -> IncrementalDetokenizer:
        """A fresh detokenizer for one output; special tokens have no text."""
        if self._token_bytes is None:
            return IncrementalDetokenizer(WindowDecoder(self.decode))
        return IncrementalDetokenizer(ByteDecoder(self._bytes_of))

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._special_ids or self._token_bytes is None:
            return b""
        return self._token_bytes.get(token_id, b"")


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    return isinstance(backend.decoder, tokenizers.decoders.ByteLevel)


def _byte_level_bytes(vocab: Mapping[str, int]) -> dict[int, bytes]:
    byte_of = byte_of_char()
    return {
        token_id: bytes([byte_of[char] for char in token])
        if all(char in byte_of for char in token)
        else token.encode()  # an added token outside the byte alphabet stands for itself
        for token, token_id in vocab.items()
    }


def _hash_vocab(vocab: Mapping[str, int]) -> str:
    digest = hashlib.sha256()
    for token, token_id in sorted(vocab.items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{token_id}\0{token}\0".encode())
    return digest.hexdigest()[:32]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return settings


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in _SPECIAL_TOKEN_NAMES:
        token = settings.get(name)
        if isinstance(token, dict):  # an AddedToken written out
            token = token.get("content")
        if isinstance(token, str):
            tokens[name] = token
    return tokens


def _template_source(root: Path, settings: Mapping[str, Any]) -> str | None:
    path = root / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates: the default one
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _eos_token_ids(root: Path, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> tuple[int, ...]:
    # The order of `transformers` generate: the first file that names it decides.
    for name in ("generation_config.json", "config.json"):
        declared = _read_json(root / name).get("eos_token_id")
        if isinstance(declared, int):
            return (declared,)
        if isinstance(declared, list) and declared:
            return tuple(int(token_id) for token_id in declared)
    eos_token = special_tokens.get("eos_token")
    token_id = None if eos_token is None else backend.token_to_id(eos_token)
    return () if token_id is None else (token_id,)
