"""The tokenizer reads a model folder and says plainly what is wrong with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specgrove.errors import InvalidInput, ModelLoadError
from specgrove.text import ChatMessage, OutputText, StopMatch, Tokenizer
from specgrove.text.token_text import bytes_of_piece
from support.tiny_tokenizer import write_tiny_tokenizer

CHAT = [ChatMessage("system", "Be brief."), ChatMessage("user", "Hello <b>")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_tokenizer(tmp_path)


def test_end_of_sequence_comes_from_the_generation_config_first(folder: Path) -> None:
    assert Tokenizer.load(folder).eos_token_ids == (2,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    assert Tokenizer.load(folder).eos_token_ids == (2, 0)
    (folder / "generation_config.json").unlink()
    assert Tokenizer.load(folder).eos_token_ids == (2,)  # the tokenizer's own


def test_chat_template_renders_with_the_generation_prompt(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    text = tokenizer.decode(tokenizer.apply_chat_template(CHAT), skip_special=False)
    assert text == "<|start|>system\nBe brief.<|end|>\n<|start|>user\nHello <b><|end|>\n<|start|>assistant\n"


def test_chat_template_inside_the_tokenizer_config_is_used(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ bos_token }}{{ messages[0].content | tojson }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.apply_chat_template([ChatMessage("user", "é")])
    assert tokenizer.decode(ids, skip_special=False) == '<|start|>"é"'


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('roles must alternate') }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"],
)
def test_a_template_that_refuses_or_breaks_out_is_bad_input(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidInput) as raised:
        Tokenizer.load(folder).apply_chat_template(CHAT)
    assert raised.value.field == "messages"


def test_a_missing_template_is_said(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(InvalidInput, match="no chat template"):
        Tokenizer.load(folder).apply_chat_template(CHAT)


def test_vocab_hash_changes_with_one_token(folder: Path) -> None:
    before = Tokenizer.load(folder).vocab_hash
    vocabulary = json.loads((folder / "tokenizer.json").read_text())
    vocabulary["added_tokens"][0]["content"] = "<|other|>"
    vocabulary["model"]["vocab"]["<|other|>"] = vocabulary["model"]["vocab"].pop("<|pad|>")
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    assert Tokenizer.load(folder).vocab_hash != before


def test_truncation_left_in_the_file_never_cuts_a_prompt(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    assert len(Tokenizer.load(folder).encode("Hello world, this is a small text")) > 3


def test_missing_and_broken_files_are_named(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="generation_config"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="tokenizer.json"):
        Tokenizer.load(folder)
    with pytest.raises(ModelLoadError, match="no tokenizer.json"):
        Tokenizer.load(folder / "nowhere")


def test_half_a_character_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        Tokenizer.load(folder).encode("\ud800")


def test_output_text_says_after_which_token_a_stop_string_completes(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode("Hello world. END of", add_special_tokens=False)
    text = OutputText(tokenizer, ["END"])
    released = ""
    for token_id in ids:
        released += text.push(token_id)
        if text.match is not None:
            break
    assert text.match == StopMatch("END", 13)
    assert released == "Hello world. "
    assert "END" in tokenizer.decode(ids[: text.num_tokens])
    assert "END" not in tokenizer.decode(ids[: text.num_tokens - 1])


def test_output_text_ignores_a_stop_string_within_min_tokens(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode("END END", add_special_tokens=False)
    num_first = next(n for n in range(1, len(ids)) if "END" in tokenizer.decode(ids[:n]))
    text = OutputText(tokenizer, ["END"], min_tokens=num_first)
    assert "".join(text.push(token_id) for token_id in ids) == "END "
    assert text.match == StopMatch("END", 4)


def test_text_and_gateway_stay_free_of_torch_and_transformers() -> None:
    code = (
        "import sys, specgrove.text, specgrove_gateway.__main__;"
        "bad = sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'transformers', 'triton'});"
        "sys.exit(str(bad) if bad else 0)"
    )
    code = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}; {code}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_token_alone_is_text_or_escaped_bytes_or_a_name(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_tiny_tokenizer(tmp_path))
    spelled = [tokenizer.token_text(token_id) for token_id in tokenizer.encode("Hello 🌲")]
    assert b"".join(token.raw or b"" for token in spelled).decode() == "Hello 🌲"
    fragments = [token for token in spelled if token.is_fragment]
    assert fragments
    assert all(token.text.startswith("\\x") for token in fragments)
    end = tokenizer.token_text(2)
    assert (end.text, end.raw) == ("<|end|>", None)
    assert tokenizer.token_text(10_000).text == ""


def test_a_sentencepiece_token_alone_keeps_its_space_and_its_byte() -> None:
    assert bytes_of_piece("\u2581oak") == b" oak"
    assert bytes_of_piece("<0xE2>") == b"\xe2"
    assert bytes_of_piece("<0xE2> ") == b"<0xE2> "
