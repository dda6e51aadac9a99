"""What a request asks of the sampler and when it ends. Torch-free: the gateway builds it, the verifier obeys it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specgrove.errors import InvalidInput
from specgrove.sampling.rules import Rule

MAX_SEED = 2**64 - 1
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_TOP_K = 2**31 - 1
MAX_PENALTY = 2.0  # of presence and frequency, either way
MAX_LOGIT_BIAS = 100.0  # either way
MAX_LOGIT_BIAS_ENTRIES = 300
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 16
MAX_EXPANSION_LEVELS = 64
MAX_EXPANSION_WIDTH = 64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. `temperature` 0 is greedy: the noise of `seed` is switched off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps everything
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0  # 1 is off
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit), no id twice

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or not 0.0 <= self.temperature <= 100.0:
            raise InvalidInput(f"temperature must be between 0 and 100, got {self.temperature}", field="temperature")
        if not math.isfinite(self.top_p) or not 0.0 < self.top_p <= 1.0:
            raise InvalidInput(f"top_p must be above 0 and at most 1, got {self.top_p}", field="top_p")
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise InvalidInput(f"top_k must be 0 (off) or positive, got {self.top_k}", field="top_k")
        if not math.isfinite(self.min_p) or not 0.0 <= self.min_p <= 1.0:
            raise InvalidInput(f"min_p must be between 0 and 1, got {self.min_p}", field="min_p")
        if not 0 <= self.seed <= MAX_SEED:
            raise InvalidInput(f"seed must be between 0 and 2**64 - 1, got {self.seed}", field="seed")
        self._check_adjustments()

    def _check_adjustments(self) -> None:
        if not math.isfinite(self.repetition_penalty) or self.repetition_penalty <= 0.0:
            raise InvalidInput(
                f"repetition_penalty must be above 0 (1 is off), got {self.repetition_penalty}",
                field="repetition_penalty",
            )
        for name, penalty in (
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            if not -MAX_PENALTY <= penalty <= MAX_PENALTY:  # NaN is in no range
                raise InvalidInput(
                    f"{name} must be between {-MAX_PENALTY:g} and {MAX_PENALTY:g}, got {penalty}", field=name
                )
        check_num_biases(len(self.logit_bias))
        for token_id, bias in self.logit_bias:
            if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
                raise InvalidInput(
                    f"logit_bias must be between {-MAX_LOGIT_BIAS:g} and {MAX_LOGIT_BIAS:g}, got {bias} for token "
                    f"{token_id}",
                    field="logit_bias",
                )
        if len(dict(self.logit_bias)) < len(self.logit_bias):
            raise InvalidInput("logit_bias names a token twice", field="logit_bias")

    @property
    def has_penalties(self) -> bool:
        """Whether what was said before changes what comes."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


def check_num_biases(num_entries: int) -> None:
    """Raises InvalidInput for a longer `logit_bias` than is read; ask before looking at the entries."""
    if num_entries > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidInput(
            f"logit_bias holds {num_entries} entries; at most {MAX_LOGIT_BIAS_ENTRIES} are read", field="logit_bias"
        )


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When a generation ends. `min_tokens` suppresses every stop but `max_tokens` and the end of the context."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidInput(f"max_tokens must be at least 1, got {self.max_tokens}", field="max_tokens")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise InvalidInput(
                f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), got {self.min_tokens}",
                field="min_tokens",
            )
        if len(self.stop_strings) > MAX_STOP_STRINGS:
            raise InvalidInput(f"at most {MAX_STOP_STRINGS} stop strings, got {len(self.stop_strings)}", field="stop")
        if any(not text or len(text) > MAX_STOP_STRING_CHARS for text in self.stop_strings):
            raise InvalidInput(
                f"a stop string must have 1 to {MAX_STOP_STRING_CHARS} characters; drop the empty or longer one",
                field="stop",
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidInput(
                f"at most {MAX_STOP_TOKEN_IDS} stop token ids, got {len(self.stop_token_ids)}", field="stop_token_ids"
            )


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """A request's own limits on speculation; 0 means the verifier's limit.

    Never changes what is said: with rule `coupled` not one token, with the others not the law they are drawn from.
    """

    is_enabled: bool = True
    max_nodes: int = 0
    max_depth: int = 0
    rule: Rule | None = None  # None = the verifier's own
    expansion: tuple[int, ...] = ()  # static tree shape <k1,...,km>; empty = the drafter's own

    def __post_init__(self) -> None:
        if self.max_nodes < 0:
            raise InvalidInput(f"max_nodes must not be negative, got {self.max_nodes}", field="speculation.max_nodes")
        if self.max_depth < 0:
            raise InvalidInput(f"max_depth must not be negative, got {self.max_depth}", field="speculation.max_depth")
        if len(self.expansion) > MAX_EXPANSION_LEVELS or any(
            not 1 <= width <= MAX_EXPANSION_WIDTH for width in self.expansion
        ):
            raise InvalidInput(
                f"expansion must be at most {MAX_EXPANSION_LEVELS} widths between 1 and {MAX_EXPANSION_WIDTH}",
                field="speculation.expansion",
            )
