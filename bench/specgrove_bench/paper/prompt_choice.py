"""Which prompts the tables are made of."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from specgrove.errors import InvalidInput
from specgrove.text import ChatMessage, Tokenizer
from specgrove_bench.prompts import BenchPrompt, load_prompts


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """`every` takes each n-th prompt of every category; without it the categories take turns up to `count` prompts."""

    path: Path
    count: int
    every: int  # 0 = by count
    categories: tuple[str, ...]  # empty = all
    max_prompt_tokens: int


def choose_prompts(choice: PromptChoice, tokenizer: Tokenizer) -> list[BenchPrompt]:
    """The chosen prompts as the model sees them. Raises `InvalidInput` when the file or the choice is no good."""
    if not choice.path.is_file():
        # The development prompts lie beside the repository, not in it.
        prompts = load_prompts(choice.path, tokenizer, count=1000, max_prompt_tokens=choice.max_prompt_tokens)
    else:
        prompts = _read(choice.path, tokenizer, choice.max_prompt_tokens)
    known = sorted({prompt.category for prompt in prompts})
    unknown = [name for name in choice.categories if name not in known]
    if unknown:
        raise InvalidInput(
            f"no category {', '.join(unknown)} in {choice.path}; there are {', '.join(known)}", field="--categories"
        )
    wanted = [prompt for prompt in prompts if not choice.categories or prompt.category in choice.categories]
    chosen = _each_nth(wanted, choice.every) if choice.every else _in_turns(wanted)[: choice.count]
    if not chosen:
        raise InvalidInput(
            f"{choice.path} holds no prompt of 2 to {choice.max_prompt_tokens} tokens", field="--prompts"
        )
    return chosen


def _read(path: Path, tokenizer: Tokenizer, max_prompt_tokens: int) -> list[BenchPrompt]:
    prompts = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            category, question = str(row["category"]), row["turns"][0]
            if not isinstance(question, str):
                raise TypeError
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InvalidInput(
                f'{path}, line {number}: every line must be like {{"category": "math", "turns": ["What is 2 + 2?"]}}',
                field="--prompts",
            ) from error
        token_ids = tuple(tokenizer.apply_chat_template([ChatMessage("user", question)]))
        if 2 <= len(token_ids) <= max_prompt_tokens:
            prompts.append(BenchPrompt(category, token_ids))
    return prompts


def _each_nth(prompts: list[BenchPrompt], every: int) -> list[BenchPrompt]:
    seen: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        if seen[prompt.category] % every == 0:
            chosen.append(prompt)
        seen[prompt.category] += 1
    return chosen


def _in_turns(prompts: list[BenchPrompt]) -> list[BenchPrompt]:
    """The first of each category, then the second of each, and so on."""
    turn: Counter[str] = Counter()
    keyed = []
    for prompt in prompts:
        keyed.append((turn[prompt.category], prompt.category, prompt))
        turn[prompt.category] += 1
    return [prompt for _, _, prompt in sorted(keyed, key=lambda entry: entry[:2])]
