"""Streamed text equals the whole text, whatever the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specgrove.text import IncrementalDetokenizer, Tokenizer
from specgrove.text.detokenizer import WindowDecoder
from support.tiny_tokenizer import write_tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def pieces_of(detokenizer: IncrementalDetokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push([token_id]) for token_id in ids), detokenizer.finish()]


@given(text=st.text(max_size=60))
def test_pieces_join_to_the_text_that_was_encoded(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces_of(tokenizer.detokenizer(), ids)) == text == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 420), max_size=40), data=st.data())
def test_any_ids_in_any_chunks_join_to_the_whole_decoding(
    tokenizer: Tokenizer, ids: list[int], data: st.DataObject
) -> None:
    detokenizer = tokenizer.detokenizer()
    streamed, rest = "", ids
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        streamed += detokenizer.push(rest[:size])
        rest = rest[size:]
    assert streamed + detokenizer.finish() == tokenizer.decode(ids)


@given(text=st.text(st.sampled_from("👩‍👩‍👧🌳éжx "), max_size=20))
def test_no_piece_holds_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert not any("\ufffd" in piece for piece in pieces_of(tokenizer.detokenizer(), ids))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(max_size=40))
def test_the_window_decoder_agrees_for_valid_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(IncrementalDetokenizer(WindowDecoder(tokenizer.decode)), ids)
    assert "".join(pieces) == text


def test_the_window_decoder_keeps_a_space_that_a_decoder_strips_at_the_start() -> None:
    words = {1: "▁Hello", 2: "▁", 3: "▁world", 4: "!"}

    def decode(ids: object) -> str:
        return "".join(words.get(token_id, "") for token_id in ids).replace("▁", " ").removeprefix(" ")  # type: ignore[attr-defined]

    pieces = pieces_of(IncrementalDetokenizer(WindowDecoder(decode)), [1, 9, 3, 2, 4])
    assert "".join(pieces) == "Hello world !"


def test_an_unfinished_character_is_flushed_as_a_replacement(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\U0001f3dd", add_special_tokens=False)  # not in the training text: several byte tokens
    assert len(ids) > 1
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push(ids[:-1]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    ids = [1, *tokenizer.encode("Hello", add_special_tokens=False), 2]
    assert "".join(pieces_of(tokenizer.detokenizer(), ids)) == "Hello"


def test_endless_invalid_bytes_do_not_pile_up(tokenizer: Tokenizer) -> None:
    byte_token = tokenizer.token_id("ÿ")  # 0xFF: never valid
    assert byte_token is not None
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push([byte_token]) for _ in range(50)] == ["\ufffd"] * 50


def test_tokenizer_of_the_folder_is_a_path_too(tmp_path: Path) -> None:
    folder = write_tiny_tokenizer(tmp_path / "model")
    assert Tokenizer.load(str(folder)).vocab_hash == Tokenizer.load(folder).vocab_hash
