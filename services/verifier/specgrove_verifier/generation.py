"""One generation in the engine: its committed tokens, its place in the cache, its drafts, its listener.

tokens   [ prompt ............ | output ........ ]
cached   [ keys and values ...................|  ]      the last token (the root) is not cached between steps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.errors import InvalidInput, SpecgroveError
from specgrove.outcome import FinishReason, SpeculationStats, TokenLogprobs
from specgrove.runtime.kv_cache import CachedSequence
from specgrove.sampling.adjustments import LogitAdjuster
from specgrove.sampling.noise import NoiseRows
from specgrove.sampling.params import MAX_TOP_LOGPROBS, SamplingParams, SpeculationOptions, StopConditions
from specgrove.sampling.rules import Rule
from specgrove_verifier.features import KeptFeatures
from specgrove_verifier.mailbox import Base, DraftMailbox
from specgrove_verifier.stopping import StopChecker


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request."""

    session_id: str
    epoch: int
    request_id: str
    prompt_token_ids: tuple[int, ...]
    committed_token_ids: tuple[int, ...]  # output of an earlier owner
    sampling: SamplingParams
    stop: StopConditions
    speculation: SpeculationOptions
    priority: int = 0  # the lower goes first
    top_logprobs: int | None = None  # None = no logprobs are wanted
    wants_prompt_logprobs: bool = False

    def __post_init__(self) -> None:
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InvalidInput(
                f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, got {self.top_logprobs}", field="top_logprobs"
            )


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step gave a generation. The last one carries `finish_reason` and `stats`, or `error`."""

    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_string: str = ""
    stats: SpeculationStats | None = None
    error: SpecgroveError | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()  # of `token_ids`, where they were asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # on the first output: of the prompt from its second token

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


Listener = Callable[[StepOutput], None]  # called on the engine's thread; must not block


class Generation:
    """The engine's state of one request. Only the engine's thread touches it after `submit`."""

    def __init__(
        self,
        key: int,
        request: GenerationRequest,
        *,
        rule: Rule = Rule.COUPLED,
        checker: StopChecker,
        noise: NoiseRows,
        mailbox: DraftMailbox,
        listener: Listener,
        arrived_s: float,
    ) -> None:
        self.key = key
        self.request = request
        self.rule = rule
        self.checker = checker
        self.noise = noise
        self.mailbox = mailbox
        self.listener = listener
        self.tokens = [*request.prompt_token_ids, *request.committed_token_ids]
        # Of the prompt's tokens from the second, as far as they are known; sent and forgotten with the first output.
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.num_unscored = self.prompt_len - 1 if request.wants_prompt_logprobs else 0
        self.adjuster = LogitAdjuster.of(request.sampling, request.prompt_token_ids, request.committed_token_ids)
        self.base_hash = extend_hash(EMPTY_HASH, self.tokens)
        self.block_hashes: list[bytes] = []  # of full blocks of `tokens`, as far as they were needed
        self.seq: CachedSequence | None = None  # None while waiting for a place
        self.had_place = False
        self.drafters: frozenset[int] = frozenset()  # streams that mirror it
        self.num_untold = 0  # of the last tokens, how many they have not been told of yet
        self.stats = SpeculationStats()
        self.arrived_s = arrived_s
        self.first_token_s: float | None = None
        self.committed_s = arrived_s  # when the last step ended
        self.previous_base = (0, arrived_s)  # the base before this one, and when it was committed
        self.features: KeptFeatures | None = None  # of the present base, where a drafter wants them
        self.is_first_draft = True  # its drafter may still be reading the prompt

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_uncached(self) -> int:
        """Committed tokens without keys and values: 1 between steps, more before and during prefill."""
        return len(self.tokens) - (self.seq.cached_len if self.seq is not None else 0)

    @property
    def is_decoding(self) -> bool:
        return self.seq is not None and self.num_uncached == 1

    @property
    def base(self) -> Base:
        return Base(len(self.tokens), self.base_hash, self.tokens[-1])

    @property
    def first_unscored(self) -> int:
        """Absolute position of the first row whose law a prompt's logprob is still wanted from."""
        return self.prompt_len - 1 - self.num_unscored

    def score(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Take in the logprobs of the prompt's next tokens."""
        self.prompt_logprobs += logprobs
        self.num_unscored -= len(logprobs)

    @property
    def suppressed_below(self) -> int:
        """Absolute position below which no stop token may be drawn."""
        return self.prompt_len + self.request.stop.min_tokens

    def append(self, token_ids: Sequence[int]) -> None:
        self.tokens += token_ids
        if self.adjuster is not None:
            self.adjuster.append(token_ids)
        self.base_hash = extend_hash(self.base_hash, token_ids)
