"""The text of one generation, token by token: detokenised, and cut before the first stop string.

The verifier asks it when to stop, the gateway asks it what to show. One definition serves both: a stop string counts if
it completes in a token after the first `min_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence

from specgrove.text.detokenizer import IncrementalDetokenizer
from specgrove.text.stop_strings import StopMatch, StopStringMatcher
from specgrove.text.tokenizer import Tokenizer


class OutputText:
    """Push each output token once, in order; special tokens count but have no text."""

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer: IncrementalDetokenizer = tokenizer.detokenizer()
        self._matcher = StopStringMatcher(stop_strings)
        self._min_tokens = min_tokens
        self.num_tokens = 0
        self.num_chars = 0  # of the text so far, what is held back or cut off included

    @property
    def match(self) -> StopMatch | None:
        """The stop string that ended the text, once one did."""
        return self._matcher.match

    def push(self, token_id: int) -> str:
        """The new text that is final and can no longer be part of a stop string; nothing once one matched."""
        self.num_tokens += 1
        return self._read(self._detokenizer.push((token_id,)))

    def skip(self) -> None:
        """Count a token that has no text: the stop token that ended the generation."""
        self.num_tokens += 1

    def finish(self) -> str:
        """What was held back; nothing after a match."""
        return self._read(self._detokenizer.finish()) + self._matcher.finish()

    def _read(self, text: str) -> str:
        self.num_chars += len(text)
        return self._matcher.push(text, can_match=self.num_tokens > self._min_tokens)
