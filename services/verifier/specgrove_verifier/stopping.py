"""When a generation ends, decided token by token, so that it may end inside an accepted path."""

from __future__ import annotations

from specgrove.outcome import FinishReason
from specgrove.sampling.params import StopConditions
from specgrove.text import OutputText, Tokenizer


class StopChecker:
    """Sees every output token once, in order, and says when the last one has come.

    End-of-sequence and stop tokens cannot be drawn before `min_tokens` (the sampler suppresses them); stop strings
    that complete before do not count.
    """

    def __init__(
        self, stop: StopConditions, *, eos_token_ids: tuple[int, ...], room: int, tokenizer: Tokenizer | None
    ) -> None:
        """`room` is how many output tokens fit the context; `tokenizer` is needed for stop strings only."""
        self._stop = stop
        self._max_tokens = min(stop.max_tokens, room)
        self.stop_token_ids = frozenset(stop.stop_token_ids) | (
            frozenset() if stop.ignore_eos else frozenset(eos_token_ids)
        )
        self._text = None
        if stop.stop_strings and tokenizer is not None:
            self._text = OutputText(tokenizer, stop.stop_strings, stop.min_tokens)
        self._num_tokens = 0
        self.stop_string = ""

    def push(self, token_id: int) -> FinishReason | None:
        """Why the generation ends with `token_id`, or None to go on."""
        self._num_tokens += 1
        if token_id in self.stop_token_ids and self._num_tokens > self._stop.min_tokens:
            return FinishReason.STOP
        if self._text is not None:
            self._text.push(token_id)
            if self._text.match is not None:
                self.stop_string = self._text.match.stop_string
                return FinishReason.STOP
        return FinishReason.LENGTH if self._num_tokens >= self._max_tokens else None

    @property
    def num_left(self) -> int:
        """How many more tokens may come at most."""
        return self._max_tokens - self._num_tokens
