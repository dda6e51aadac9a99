"""The draft mailbox of one generation: which trees count for the coming step. A pure state machine, no I/O, no clock.

           expect(base, budget, drafters)
                     │
    offer(draft) ────┼──▶ accepted / replaced          the tree waits for the step; newest of a drafter wins
                     ├──▶ late                         base_len is behind: the step went on without it
                     ├──▶ divergent / foreign / unwanted / over_budget / malformed       dropped and counted
                     ▼
                   take() ──▶ the merged tree, and the mailbox is empty until the next expect

Under rule `mss` a draft counts only with the laws its children were drawn from, and is merged with them.
Whatever comes in, in whatever order, however often: the worst it can do is to be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from specgrove.draft import ChildLaw, Draft
from specgrove.draft_laws import LawfulTree, check_laws, merge_lawful
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
MEMBER_BITS = 32  # of a node's members, for each drafter; as wide as on the wire


@dataclass(frozen=True, slots=True)
class Base:
    """The committed sequence a tree must hang under."""

    length: int
    hash: int
    last_token_id: int


class DraftMailbox:
    """Collects the drafts for one base. Drafters are named by the number of their stream."""

    def __init__(self, vocab_size: int, *, needs_laws: bool = False) -> None:
        self._vocab_size = vocab_size
        self._needs_laws = needs_laws
        self._taken_laws: tuple[ChildLaw, ...] = ()
        self._taken_from: tuple[int, ...] = ()
        self._came_empty = False
        self._base: Base | None = None
        self._budget = NO_DRAFT
        self._asked: frozenset[int] = frozenset()
        self._answered: set[int] = set()
        self._drafts: dict[int, LawfulTree] = {}

    @property
    def budget(self) -> DraftBudget:
        return self._budget

    @property
    def asked(self) -> frozenset[int]:
        return self._asked

    @property
    def taken_laws(self) -> tuple[ChildLaw, ...]:
        """The laws of the tree that `take` has given out last; none unless laws are needed."""
        return self._taken_laws

    @property
    def taken_from(self) -> tuple[int, ...]:
        """Whose the tree is that `take` has given out last: the i-th drafter has its members' bits from bit 32 i on."""
        return self._taken_from

    @property
    def has_draft(self) -> bool:
        """Whether an answer lies here."""
        return bool(self._drafts)

    @property
    def came_empty(self) -> bool:
        """Whether `take` found answers last, and none of them proposed anything."""
        return self._came_empty

    def expect(self, base: Base, budget: DraftBudget, drafters: frozenset[int]) -> None:
        """From now on only drafts under `base` by `drafters` count; what lies here is dropped."""
        self._base = base
        self._budget = budget
        self._asked = drafters if budget.max_nodes > 0 else frozenset()
        self._answered.clear()
        self._drafts.clear()

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
            laws = self._check_laws(tree, draft)
        except InvalidInput as error:
            is_over_budget = error.field in ("max_nodes", "max_depth")
            return DraftOutcome.OVER_BUDGET if is_over_budget else DraftOutcome.MALFORMED
        is_replacement = drafter in self._drafts
        self._drafts[drafter] = tree, laws
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
        self._taken_from = tuple(sorted(self._drafts))
        drafts = [_set_apart(*self._drafts[drafter], place) for place, drafter in enumerate(self._taken_from)]
        budget = self._budget
        self._taken_laws = ()
        self._drafts.clear()
        self._asked = frozenset()
        self._came_empty = bool(drafts) and not any(tree.num_draft_nodes for tree, _ in drafts)
        if not drafts or self._came_empty:
            return None
        merged = drafts[0][0]
        if self._needs_laws:
            merged, self._taken_laws = merge_lawful(drafts, budget.max_nodes)
        elif len(drafts) > 1:
            trees = [tree for tree, _ in drafts]
            merged = merge(trees).truncated(max_draft_nodes=budget.max_nodes, max_depth=budget.max_depth)
        return merged

    def _check_laws(self, tree: TokenTree, draft: Draft) -> tuple[ChildLaw, ...]:
        """The draft's laws where they are needed (`InvalidInput` when they do not fit), none elsewhere."""
        if not self._needs_laws:
            return ()
        return check_laws(tree, draft.laws, vocab_size=self._vocab_size, max_draws=self._budget.max_nodes)


def _set_apart(tree: TokenTree, laws: tuple[ChildLaw, ...], place: int) -> LawfulTree:
    """The draft with its members' bits moved to the drafter's own place, so that merging does not mix them up."""
    if place == 0:
        return tree, laws
    return replace(tree, members=tuple(mask << place * MEMBER_BITS for mask in tree.members)), laws
