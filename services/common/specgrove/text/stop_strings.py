"""Stop strings found in a text that arrives in pieces, independent of how it is cut.

    text      ... the end E N D of
    stop "END"            └──┬─┘
    released  ... the end    │            held back: the longest tail that may still become a stop string
    match                    └ start, stop_string

The match is the stop string that *completes* first; of several that complete at the same character, the longest. One
Knuth-Morris-Pratt automaton per stop string walks the text character by character, so every cut gives the same answer
and the held-back tail is exactly the longest automaton state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Which stop string appeared, and at which character of the whole text it starts."""

    stop_string: str
    start: int


class _Automaton:
    """Length of the longest prefix of `pattern` that ends the text read so far."""

    __slots__ = ("_fallback", "matched_len", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched_len = 0
        fallback = [0] * (len(pattern) + 1)  # [n] = longest proper border of pattern[:n]
        border = 0
        for n in range(1, len(pattern)):
            while border and pattern[n] != pattern[border]:
                border = fallback[border]
            if pattern[n] == pattern[border]:
                border += 1
            fallback[n + 1] = border
        self._fallback = fallback

    def step(self, char: str) -> bool:
        """True when the pattern completes with `char`."""
        if self.matched_len == len(self.pattern):  # an earlier match that did not count: go on looking
            self.matched_len = self._fallback[self.matched_len]
        while self.matched_len and char != self.pattern[self.matched_len]:
            self.matched_len = self._fallback[self.matched_len]
        if char == self.pattern[self.matched_len]:
            self.matched_len += 1
        return self.matched_len == len(self.pattern)

    @property
    def open_len(self) -> int:
        """Length of the tail that can still grow into a match; after a match that did not count, its border."""
        is_complete = self.matched_len == len(self.pattern)
        return self._fallback[self.matched_len] if is_complete else self.matched_len


class StopStringMatcher:
    """Releases text as soon as no stop string can start in it; `match` tells where one did. Nothing follows a match."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        if any(not text for text in stop_strings):
            raise ValueError("a stop string must not be empty")
        self._automata = [_Automaton(text) for text in dict.fromkeys(stop_strings)]
        self._held = ""
        self._num_chars = 0  # read so far
        self.match: StopMatch | None = None

    @property
    def held_len(self) -> int:
        """Characters held back because they may be the start of a stop string."""
        return len(self._held)

    def push(self, text: str, *, can_match: bool = True) -> str:
        """The part of the text so far that is new and can no longer be part of a stop string.

        `can_match=False` reads the text without letting a stop string that completes in it end the output
        (`min_tokens`); one that merely starts in it may complete later.
        """
        if self.match is not None:
            return ""
        if not self._automata:
            return text
        pending = self._held + text
        pending_start = self._num_chars - len(self._held)
        for char in text:
            self._num_chars += 1
            completed = [automaton.pattern for automaton in self._automata if automaton.step(char)]
            if completed and can_match:
                stop_string = max(completed, key=len)
                self.match = StopMatch(stop_string, self._num_chars - len(stop_string))
                self._held = ""
                return pending[: self.match.start - pending_start]
        held_len = max(automaton.open_len for automaton in self._automata)
        self._held = pending[len(pending) - held_len :]
        return pending[: len(pending) - held_len]

    def finish(self) -> str:
        """What was held back, now that nothing can complete it; empty after a match."""
        held, self._held = self._held, ""
        return held
