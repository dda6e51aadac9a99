"""The draft mailbox of one generation: which trees count for the coming step. A pure state machine, no I/O, no clock.

           expect(base, budget, drafters)
                     │
    offer(draft) ────┼──▶ accepted / replaced          the tree waits for the step; newest of a drafter wins
                     ├──▶ late                         base_len is behind: the step went on without it
                     ├──▶ divergent / foreign / unwanted / over_budget / malformed       dropped and counted
                     ▼
                   take() ──▶ the merged tree, and the mailbox is empty until the next expect

Whatever comes in, in whatever order, however often: the worst it can do is to be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specgrove.draft import Draft
from specgrove.errors import InvalidInput
from specgrove.tree import TokenTree, merge


class DraftOutcome(StrEnum):
    """What became of a draft; the reasons of the metric `stale_drafts`."""

    ACCEPTED = "accepted"
    REPLACED = "replaced"  # accepted in place of an earlier draft of the same drafter
    LATE = "late"  # for a base that has grown since
    DIVERGENT = "divergent"  # the drafter's tokens are not the committed ones
    FOREIGN = "foreign"  # from a drafter that was not asked, or for a session that is not here
    UNWANTED = "unwanted"  # no draft was asked for
    OVER_BUDGET = "over_budget"
    MALFORMED = "malformed"

    @property
    def is_kept(self) -> bool:
        return self in (DraftOutcome.ACCEPTED, DraftOutcome.REPLACED)


@dataclass(frozen=True, slots=True)
class DraftBudget:
    """How much of a tree the verifier will look at; the root does not count."""

    max_nodes: int
    max_depth: int


NO_DRAFT = DraftBudget(0, 0)


@dataclass(frozen=True, slots=True)
class Base:
    """The committed sequence a tree must hang under."""

    length: int
    hash: int
    last_token_id: int


class DraftMailbox:
    """Collects the drafts for one base. Drafters are named by the number of their stream."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._base: Base | None = None
        self._budget = NO_DRAFT
        self._asked: frozenset[int] = frozenset()
        self._answered: set[int] = set()
        self._trees: dict[int, TokenTree] = {}

    @property
    def budget(self) -> DraftBudget:
        return self._budget

    @property
    def asked(self) -> frozenset[int]:
        return self._asked

    def expect(self, base: Base, budget: DraftBudget, drafters: frozenset[int]) -> None:
        """From now on only drafts under `base` by `drafters` count; what lies here is dropped."""
        self._base = base
        self._budget = budget
        self._asked = drafters if budget.max_nodes > 0 else frozenset()
        self._answered.clear()
        self._trees.clear()

    def ask_also(self, drafters: frozenset[int]) -> None:
        """Let drafts by `drafters` count too; what lies here stays."""
        if self._budget.max_nodes > 0:
            self._asked |= drafters

    def offer(self, drafter: int, draft: Draft) -> DraftOutcome:
        """Take a draft in, or say why not."""
        base = self._base
        if base is None or not self._asked:
            return DraftOutcome.UNWANTED
        if drafter not in self._asked:
            return DraftOutcome.FOREIGN
        if draft.base_len < base.length:
            return DraftOutcome.LATE
        if draft.base_len > base.length or draft.base_hash != base.hash:
            return DraftOutcome.DIVERGENT
        self._answered.add(drafter)
        try:
            tree = draft.to_tree(
                base.last_token_id,
                vocab_size=self._vocab_size,
                max_nodes=self._budget.max_nodes,
                max_depth=self._budget.max_depth,
            )
        except InvalidInput as error:
            is_over_budget = error.field in ("max_nodes", "max_depth")
            return DraftOutcome.OVER_BUDGET if is_over_budget else DraftOutcome.MALFORMED
        is_replacement = drafter in self._trees
        self._trees[drafter] = tree
        return DraftOutcome.REPLACED if is_replacement else DraftOutcome.ACCEPTED

    def decline(self, drafter: int, base_len: int) -> None:
        """Note that `drafter` will send nothing for this base."""
        if self._base is not None and base_len == self._base.length and drafter in self._asked:
            self._answered.add(drafter)

    def forget(self, drafter: int) -> None:
        """Stop waiting for `drafter`; a tree that it has sent still counts."""
        self._asked -= {drafter}

    def missing(self) -> frozenset[int]:
        """Who was asked and has not answered."""
        return self._asked - self._answered

    def take(self) -> TokenTree | None:
        """The merged tree within the budget, or None; the mailbox wants nothing more until `expect`."""
        trees = [self._trees[drafter] for drafter in sorted(self._trees)]
        budget = self._budget
        self._trees.clear()
        self._asked = frozenset()
        if not trees:
            return None
        merged = trees[0]
        if len(trees) > 1:
            merged = merge(trees).truncated(max_draft_nodes=budget.max_nodes, max_depth=budget.max_depth)
        return merged if merged.num_draft_nodes else None
