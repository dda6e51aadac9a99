"""What the engine is asked for: one draft for one session under one base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specgrove.features import TargetFeatures
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule, needs_child_laws


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Names a mirror in this process: the verifier's own key is unique only on its stream."""

    stream_id: int
    session_key: int


@dataclass(frozen=True, slots=True)
class Budget:
    """How many draft nodes (root not counted) and levels the verifier will look at; 0 nodes = do not draft."""

    max_nodes: int
    max_depth: int

    @property
    def is_zero(self) -> bool:
        return self.max_nodes < 1 or self.max_depth < 1

    def capped(self, max_nodes: int, max_depth: int) -> Budget:
        return Budget(min(self.max_nodes, max_nodes), min(self.max_depth, max_depth))


ZERO_BUDGET = Budget(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class DraftJob:
    """A snapshot of a mirror.

    `token_ids` is the mirror's own list, which only ever grows: its first `base_len` entries are the base and stay as
    they are while the job lives; later entries must not be read. A new Open brings a new list.
    """

    session: SessionRef
    token_ids: Sequence[int]
    base_len: int
    base_hash: int
    opened_len: int  # how much of the base came with the Open
    sampling: SamplingParams
    stop_token_ids: frozenset[int]
    budget: Budget
    arrived_s: float  # monotonic; when the base arrived
    features: TargetFeatures | None = None  # the newest that came; of this base or of an earlier one
    rule: Rule = Rule.COUPLED
    expansion: tuple[int, ...] = ()  # static shape that the client asked for; empty = the drafter's own

    def __post_init__(self) -> None:
        if not 1 <= self.base_len <= len(self.token_ids):
            raise ValueError(f"a base needs 1 to {len(self.token_ids)} tokens, got {self.base_len}")

    @property
    def root_token_id(self) -> int:
        return self.token_ids[self.base_len - 1]

    @property
    def is_catching_up(self) -> bool:
        """Nothing is drafted: members only bring their caches up to the base."""
        return self.budget.is_zero

    @property
    def estimate_kind(self) -> str | None:
        """Names the sessions whose estimates of a node mean the same; None where children are drawn, not estimated."""
        if self.sampling.is_greedy:
            return "greedy"
        return None if self.rule is Rule.MSS else str(self.rule)

    @property
    def needs_laws(self) -> bool:
        """Whether the verifier wants the laws that the children were drawn from."""
        return needs_child_laws(self.rule, self.sampling.temperature)

    @property
    def is_overtaken(self) -> bool:
        """The base has grown since: nobody waits for this draft any more. May turn true at any moment."""
        return len(self.token_ids) > self.base_len

    def without_budget(self) -> DraftJob:
        return replace(self, budget=ZERO_BUDGET)
