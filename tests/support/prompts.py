"""Prompts for end-to-end tests: the development prompts beside the checkout if they are there, else a few own ones."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import chain, zip_longest
from pathlib import Path

from specgrove.text import ChatMessage, Tokenizer

ROOT = Path(__file__).parents[2]
_SHARED = ROOT.parent / "shared" / "data" / "prompts.jsonl"
_OWN = ROOT / "tests" / "e2e" / "prompts.json"
# Long documents cost minutes of prefill on a CPU and decide nothing here.
_MAX_PROMPT_TOKENS = 256


def _questions() -> list[tuple[str, str]]:
    """(category, question), the categories taking turns."""
    if not _SHARED.is_file():
        return [("own", question) for question in json.loads(_OWN.read_text())]
    by_category: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in _SHARED.read_text().splitlines():
        row = json.loads(line)
        by_category[row["category"]].append((row["category"], row["turns"][0]))
    turns = zip_longest(*(by_category[category] for category in sorted(by_category)))
    return [question for question in chain.from_iterable(turns) if question is not None]


def chat_prompts(tokenizer: Tokenizer, count: int) -> list[tuple[int, ...]]:
    """Token ids of up to `count` one-turn chats (fewer with our own prompts), spread over the categories."""
    prompts: list[tuple[int, ...]] = []
    for _, question in _questions():
        token_ids = tuple(tokenizer.apply_chat_template([ChatMessage("user", question)]))
        if len(token_ids) <= _MAX_PROMPT_TOKENS:
            prompts.append(token_ids)
        if len(prompts) == count:
            break
    return prompts
