"""Where the end of a growing text stood before: hash chains over its n-grams, as in LZ77.

    tokens      a  b  c  x  y  a  b  c  |  ?          the suffix "a b c" also ends at index 2
    index       0  1  2  3  4  5  6  7                its follower there is "x", and a copy would go on "x y a ..."

An n-gram is entered when its follower arrives, so a look-up never finds the end of the text itself. Appending a token
and looking one suffix up are both constant work.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

MAX_NGRAM = 3
MAX_MATCH_LEN = 16
MAX_OCCURRENCES = 8
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An earlier place where the last `match_len` tokens stood; `follower` is the index of the token after them."""

    follower: int
    match_len: int  # 1 to MAX_MATCH_LEN


class NgramIndex:
    """Indexes the first `num_tokens` tokens of a sequence that only ever grows."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids = token_ids
        self.num_tokens = 0
        self._last_end: list[dict[int, int]] = [{} for _ in range(MAX_NGRAM)]
        self._earlier_end = [
            array("q") for _ in range(MAX_NGRAM)
        ]  # [n - 1][i]: where the n-gram that ends at i ended before

    def append(self) -> None:
        """Take in the next token of the sequence."""
        end = self.num_tokens - 1  # this position has a follower now
        self.num_tokens += 1
        if end < 0:
            return
        gram = 0
        for size in range(MAX_NGRAM):
            if end - size < 0:
                self._earlier_end[size].append(_NOWHERE)
                continue
            gram = (gram << 32) | self.token_ids[end - size]
            ends = self._last_end[size]
            self._earlier_end[size].append(ends.get(gram, _NOWHERE))
            ends[gram] = end

    def occurrences(self) -> list[Occurrence]:
        """Earlier places of the longest n-gram that ends the text and stood before, latest first; at most 8."""
        grams = []
        gram = 0
        for size in range(min(MAX_NGRAM, self.num_tokens)):
            gram = (gram << 32) | self.token_ids[self.num_tokens - 1 - size]
            grams.append(gram)
        for size in reversed(range(len(grams))):
            end = self._last_end[size].get(grams[size], _NOWHERE)
            found: list[Occurrence] = []
            while end != _NOWHERE and len(found) < MAX_OCCURRENCES:
                found.append(Occurrence(end + 1, self._match_len(end, size + 1)))
                end = self._earlier_end[size][end]
            if found:
                return found
        return []

    def _match_len(self, end: int, known: int) -> int:
        """How many tokens up to `end` equal the text's last ones; the last `known` are known to."""
        last = self.num_tokens - 1
        length = known
        while (
            length < MAX_MATCH_LEN and length <= end and self.token_ids[end - length] == self.token_ids[last - length]
        ):
            length += 1
        return length
