"""A generation as the loops see it: its tokens so far, and the draft job for its present base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.features import TargetFeatures
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove_bench.paper.ways import Way
from specgrove_bench.prompts import BenchPrompt
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef

_STREAM = 1
_session_keys = count(1)


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt and how it is to be answered."""

    prompt: BenchPrompt
    sampling: SamplingParams
    max_tokens: int
    stop_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What the target answers, drafts or no drafts; it ends before `max_tokens` only at a stop token."""

    ask: Ask
    output_ids: tuple[int, ...]
    features: dict[int, TargetFeatures] = field(default_factory=dict)  # by length of the base


@dataclass(slots=True, eq=False)
class Story:
    """One generation in progress; `sampling` and `rule` are what the drafter is told."""

    session: SessionRef
    prompt_len: int
    max_tokens: int
    sampling: SamplingParams
    rule: Rule
    stop_token_ids: frozenset[int]
    token_ids: list[int]
    base_hash: int = field(init=False)

    def __post_init__(self) -> None:
        self.base_hash = extend_hash(EMPTY_HASH, self.token_ids)

    @classmethod
    def begin(cls, ask: Ask, way: Way) -> Story:
        """`ask` before its first token, told as `way` wants, in a session that no model has a cache for."""
        return cls(
            SessionRef(_STREAM, next(_session_keys)),
            len(ask.prompt.token_ids),
            ask.max_tokens,
            way.told_sampling(ask.sampling),
            way.told_rule,
            ask.stop_token_ids,
            list(ask.prompt.token_ids),
        )

    @property
    def base_len(self) -> int:
        return len(self.token_ids)

    @property
    def num_left(self) -> int:
        """How many more tokens may come at most."""
        return self.max_tokens - (len(self.token_ids) - self.prompt_len)

    def job(self, budget: Budget, features: TargetFeatures | None) -> DraftJob:
        """What a drafter is asked; the depth leaves room for the token that the step adds of its own."""
        return DraftJob(
            session=self.session,
            token_ids=self.token_ids,
            base_len=self.base_len,
            base_hash=self.base_hash,
            opened_len=self.prompt_len,
            sampling=self.sampling,
            stop_token_ids=self.stop_token_ids,
            budget=budget.capped(budget.max_nodes, self.num_left - 1),
            arrived_s=0.0,
            features=features,
            rule=self.rule,
        )

    def reopen(self) -> None:
        """Go on in a new list: models forget what they computed below earlier bases, and ask for it anew."""
        self.token_ids = list(self.token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        self.token_ids += token_ids
        self.base_hash = extend_hash(self.base_hash, token_ids)
