"""Which conversations to have: plans that the generator plays out, one a document, each from (seed, number) alone.

Without a prompt file the target writes the user's turns itself: it is put behind "<user header>" plus a seed such as
"Summarise the following article" and continues from there at temperature 1. The seeds only set the kind; a third of
the documents have none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specgrove_drafter.tuning.errors import UnsupportedTargetError
from specgrove_drafter.tuning.hub import Tokenizer, cut_between
from specgrove_drafter.tuning.prompt_seeds import LONG_STARTERS, STARTERS, SYSTEMS, TOPICS

_MARK = "specgrovemark"
SHORT_TURN = 72
LONG_TURNS = (144, 144, 240, 400)  # articles, passages and documents, as a user pastes them


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How long the target may write, in tokens."""

    max_user: int
    max_answer: int


@dataclass(frozen=True, slots=True)
class DocumentPlan:
    """One conversation to play out.

    `opening` is shared by many documents and its KV rows are reused; `forced` are further tokens that nobody chooses.
    An empty `limits.max_user` means that `forced` already holds the whole user turn and the answer's header.
    """

    document_id: int
    opening: tuple[int, ...]
    forced: tuple[int, ...]
    limits: TurnLimits
    num_turns: int
    temperature: float  # of the answers; 0 is greedy


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """The chat template cut into the pieces between what people say; blank lines for a target without a template."""

    tokenizer: Tokenizer
    to_answer: tuple[int, ...]  # ends the user's turn, opens the answer
    to_user: tuple[int, ...]  # after the answer's own end token: opens the next user turn
    end_id: int  # the token with which the target ends a turn

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, end_id: int) -> ChatFrame:
        """Raises UnsupportedTargetError when the chat template is not one of alternating turns."""
        encode = tokenizer.encode
        if not tokenizer.chat_template:
            blank = tuple(encode("\n\n", add_special_tokens=False))
            return cls(tokenizer, blank, blank, end_id)
        try:
            turns = [{"role": role, "content": _MARK} for role in ("user", "assistant", "user")]
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates raise whatever their author chose
            raise UnsupportedTargetError(f"the target's chat template cannot be rendered: {error}") from error
        pieces = cut_between(text, _MARK, 4)
        to_user = encode(pieces[2], add_special_tokens=False)
        if to_user and to_user[0] == end_id:
            to_user = to_user[1:]
        return cls(tokenizer, tuple(encode(pieces[3], add_special_tokens=False)), tuple(to_user), end_id)

    def opening(self, system: str | None) -> tuple[int, ...]:
        """Everything before the user's first word; `system` None means the template's default."""
        if not self.tokenizer.chat_template:
            # A base model starts from its first special token, or from its last, as it was trained to.
            first = self.tokenizer.bos_token_id
            return (self.end_id if first is None else first,)
        turns = [{"role": "user", "content": _MARK}]
        if system is not None:
            turns.insert(0, {"role": "system", "content": system})
        text = self.tokenizer.apply_chat_template(turns, tokenize=False).split(_MARK)[0]
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


def read_prompts(path: Path) -> list[str]:
    """Prompts of a text file (one a line) or of a .jsonl with `prompt`, `turns`, `messages` or `text`."""
    prompts = []
    for line in filter(None, (raw.strip() for raw in path.read_text(encoding="utf-8").splitlines())):
        if path.suffix != ".jsonl":
            prompts.append(line)
            continue
        row = json.loads(line)
        first = row.get("prompt") or row.get("text") or (row.get("turns") or [None])[0]
        prompts.append(first or row["messages"][0]["content"])
    return prompts


def plans_from_prompts(frame: ChatFrame, prompts: Sequence[str], seed: int) -> Iterator[DocumentPlan]:
    """One plan a prompt, in the given order."""
    opening = frame.opening(None)
    for number, prompt in enumerate(prompts):
        chance = random.Random(f"{seed}/{number}")
        words = tuple(frame.tokenizer.encode(prompt, add_special_tokens=False))
        forced = words + frame.to_answer
        limits = TurnLimits(0, chance.choice((96, 128, 160, 192, 224)))
        yield DocumentPlan(number, opening, forced, limits, 1, _answer_temperature(chance))


def synthetic_plan(frame: ChatFrame, seed: int, number: int) -> DocumentPlan:
    """The plan of document `number`; the same for the same seed, whatever came before."""
    chance = random.Random(f"{seed}/{number}")
    system = None if chance.random() < 0.8 else chance.choice(SYSTEMS)
    kind = chance.random()
    starter, max_user = "", SHORT_TURN
    if kind < 0.48:
        starter = chance.choice(STARTERS).replace("{topic}", chance.choice(TOPICS))
    elif kind < 0.74:
        starter = chance.choice(LONG_STARTERS).replace("{topic}", chance.choice(TOPICS))
        max_user = chance.choice(LONG_TURNS)
    num_turns = 1
    if max_user == SHORT_TURN and chance.random() < 0.18:
        num_turns = chance.choice((2, 2, 3))
    limits = TurnLimits(max_user, chance.choice((96, 128, 144, 160, 176)))
    if num_turns > 1:
        limits = TurnLimits(40, 88)
    forced = tuple(frame.tokenizer.encode(starter, add_special_tokens=False)) if starter else ()
    temperature = _answer_temperature(chance)
    return DocumentPlan(number, frame.opening(system), forced, limits, num_turns, temperature)


def _answer_temperature(chance: random.Random) -> float:
    """Mostly greedy, as most serving is; the rest between 0.7 and 1 so that paths off the beaten track are seen too."""
    return 0.0 if chance.random() < 0.75 else round(chance.uniform(0.7, 1.0), 3)
