"""The development prompts, spread over their categories; a few of our own where they are not at hand."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from specgrove.text import ChatMessage, Tokenizer

_OWN = (
    ("writing", "Write a haiku about the sea, then explain it in two sentences."),
    ("maths", "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Show your steps."),
    ("translation", "Translate into German: The library opens at nine and closes at six."),
    ("knowledge", "Name five rivers of Europe and the countries they flow through."),
    ("copying", "Repeat this list in reverse order: oak, beech, birch, pine, yew, elm, ash, lime."),
    ("coding", "Write a Python function that returns the n-th Fibonacci number, with a docstring."),
    ("explaining", "Why is the sky blue? Explain it to a child."),
    ("summary", "Summarise in one sentence: The gardener planted forty trees, and by autumn thirty-one had rooted."),
)


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One question as the model sees it."""

    category: str
    token_ids: tuple[int, ...]


def load_prompts(path: Path, tokenizer: Tokenizer, *, count: int, max_prompt_tokens: int) -> list[BenchPrompt]:
    """Up to `count` prompts, the categories taking turns."""
    prompts: list[BenchPrompt] = []
    for category, question in _questions(path):
        token_ids = tuple(tokenizer.apply_chat_template([ChatMessage("user", question)]))
        if len(token_ids) <= max_prompt_tokens:
            prompts.append(BenchPrompt(category, token_ids))
        if len(prompts) == count:
            break
    return prompts


def _questions(path: Path) -> list[tuple[str, str]]:
    if not path.is_file():
        return list(_OWN)
    by_category: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        by_category[row["category"]].append((row["category"], row["turns"][0]))
    turns = zip_longest(*(by_category[category] for category in sorted(by_category)))
    return [question for question in chain.from_iterable(turns) if question is not None]
