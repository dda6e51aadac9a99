"""A mirror: what this drafter knows of one session of one verifier. Disposable; the verifier owns the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.features import TargetFeatures
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.tree import ROOT, TokenTree
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef
from specgrove_drafter.trees.sent_draft import SentDraft


@dataclass(frozen=True, slots=True)
class Opened:
    """The verifier starts, or starts again, to be mirrored in a session."""

    session_key: int
    token_ids: Sequence[int]
    sampling: SamplingParams
    budget: Budget
    stop_token_ids: frozenset[int]
    features: TargetFeatures | None = None
    rule: Rule = Rule.COUPLED
    expansion: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed sequence grew from `from_len` by `token_ids`."""

    session_key: int
    from_len: int
    token_ids: Sequence[int]
    budget: Budget
    features: TargetFeatures | None = None


@dataclass(frozen=True, slots=True)
class AcceptedNode:
    """A node of a sent tree that became part of the committed sequence."""

    members: int  # bitmask of the members that proposed it
    depth: int


@dataclass(slots=True, eq=False)
class Mirror:
    """The committed tokens of a session and the draft that is wanted for them.

    `token_ids` only ever grows: snapshots share it (`DraftJob`). A new Open makes a new mirror.
    """

    session: SessionRef
    token_ids: list[int]
    sampling: SamplingParams
    stop_token_ids: frozenset[int]
    budget: Budget
    arrived_s: float
    features: TargetFeatures | None = None
    rule: Rule = Rule.COUPLED
    expansion: tuple[int, ...] = ()
    opened_len: int = 0
    base_hash: int = EMPTY_HASH
    sent: SentDraft | None = field(default=None)  # hangs under the present base
    read_len: int = 0  # how much of the base the engine was given
    is_known_to_engine: bool = False

    def __post_init__(self) -> None:
        self.opened_len = len(self.token_ids)
        self.base_hash = extend_hash(EMPTY_HASH, self.token_ids)

    @classmethod
    def open(cls, session: SessionRef, opened: Opened, now_s: float) -> Mirror:
        return cls(
            session,
            list(opened.token_ids),
            opened.sampling,
            opened.stop_token_ids,
            opened.budget,
            now_s,
            opened.features,
            opened.rule,
            opened.expansion,
        )

    @property
    def base_len(self) -> int:
        return len(self.token_ids)

    @property
    def sent_tree(self) -> TokenTree | None:
        return None if self.sent is None else self.sent.tree

    def commit(self, committed: Committed, now_s: float) -> list[AcceptedNode]:
        """Take the new tokens in; returns which nodes of the last sent tree they confirm."""
        accepted = [] if self.sent_tree is None else _accepted_nodes(self.sent_tree, committed.token_ids)
        self.sent = None
        self.token_ids += committed.token_ids
        self.base_hash = extend_hash(self.base_hash, committed.token_ids)
        self.budget = committed.budget
        self.features = committed.features or self.features
        self.arrived_s = now_s
        return accepted

    def job(self) -> DraftJob:
        """A snapshot of the present base."""
        return DraftJob(
            session=self.session,
            token_ids=self.token_ids,
            base_len=self.base_len,
            base_hash=self.base_hash,
            opened_len=self.opened_len,
            sampling=self.sampling,
            stop_token_ids=self.stop_token_ids,
            budget=self.budget,
            arrived_s=self.arrived_s,
            features=self.features,
            rule=self.rule,
            expansion=self.expansion,
        )


def _accepted_nodes(tree: TokenTree, token_ids: Sequence[int]) -> list[AcceptedNode]:
    """The nodes of `tree` on the path that `token_ids` take."""
    child_of = {(tree.parents[node], tree.token_ids[node]): node for node in range(1, tree.num_nodes)}
    accepted: list[AcceptedNode] = []
    node = ROOT
    for token_id in token_ids:
        child = child_of.get((node, token_id))
        if child is None:
            break
        accepted.append(AcceptedNode(tree.members[child], tree.depths[child]))
        node = child
    return accepted
