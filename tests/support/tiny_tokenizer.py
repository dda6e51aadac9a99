"""A real byte-level tokenizer, trained in the test on a few lines, in a folder as Hugging Face models have it."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LINES = (
    "Hello world, this is a small text about oaks and beeches in a specgrove.",
    "Le chêne pousse ici; die Bäume stehen dort. Привет, мир! 你好，世界。",
    "Emoji: 👩‍👩‍👧 🌳 🎉 and numbers 12345, END of text. Stop here. ENDING",
)
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_tiny_tokenizer(folder: Path) -> Path:
    """`folder`, now holding tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|pad|>", "<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|start|>", "eos_token": "<|end|>", "pad_token": {"content": "<|pad|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
