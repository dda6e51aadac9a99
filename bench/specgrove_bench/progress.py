"""How far a run is and how long it will still take, from how long its blocks took so far."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from specgrove_bench.plan import Block

Say = Callable[[str], None]
_FIRST_GUESS_S = 0.05  # a token, before anything is measured


class Progress:
    """Told when blocks begin and end; says at each beginning what comes and what is left."""

    def __init__(self, blocks: Sequence[Block], say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._ahead = list(blocks)
        self._num_blocks = len(blocks)
        self._say = say
        self._clock = clock
        self._began_s = 0.0
        self._seen: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)  # seconds per token asked for

    def begin(self, block: Block) -> None:
        number = self._num_blocks - len(self._ahead) + 1
        self._say(
            f"{number} of {self._num_blocks}: {block.load.key}, {block.competitor}; {in_words(self.left_s())} left"
        )
        self._began_s = self._clock()

    def end(self, block: Block) -> None:
        per_token_s = (self._clock() - self._began_s) / _num_tokens(block)
        for key in _keys(block):
            self._seen[key].append(per_token_s)
        self._ahead.remove(block)

    def left_s(self) -> float:
        """Of the blocks that have not ended, by what the likest blocks took."""
        return sum(self._guess_s(block) for block in self._ahead)

    def _guess_s(self, block: Block) -> float:
        for key in _keys(block):
            if self._seen[key]:
                return _num_tokens(block) * sum(self._seen[key]) / len(self._seen[key])
        return _num_tokens(block) * _FIRST_GUESS_S


def in_words(seconds: float) -> str:
    """`about 40 s` or `about 7 min`."""
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"


def _keys(block: Block) -> tuple[tuple[str, ...], ...]:
    """What a block may be likened to, the likest first."""
    return (block.load.key, block.competitor), (block.load.key,), (block.competitor,), ()


def _num_tokens(block: Block) -> int:
    return max(1, len(block.prompts) * block.max_tokens)
