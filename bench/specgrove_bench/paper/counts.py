"""What is counted while steps go by, and the sums by prompt category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

from specgrove.tree import TokenTree

MAX_WIDTH = 5  # of the paper's tables
NEVER = 1_000_000  # the place of a token that is not among the children


class Addable(Protocol):
    """What can be summed over prompts."""

    def __add__(self, other: Self, /) -> Self: ...


@dataclass(slots=True)
class StepCounts:
    """The account of some steps; `num_committed / num_steps` is the mean accepted length, bonus token included."""

    num_steps: int = 0
    num_committed: int = 0
    num_nodes: int = 0  # draft nodes, roots not counted
    drafted_by_depth: Counter[int] = field(default_factory=Counter)  # trees that reach depth 1, 2, ...
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    accepted_by_member: Counter[int] = field(default_factory=Counter)  # member bit -> accepted nodes it proposed
    accepted_alone: Counter[int] = field(default_factory=Counter)  # of these, the nodes that nobody else proposed

    def record(self, tree: TokenTree, accepted_nodes: Sequence[int], num_committed: int) -> None:
        """Add one step: `accepted_nodes` top down, those past the end of the answer left out."""
        self.record_depths(tree.num_draft_nodes, tree.max_depth, len(accepted_nodes), num_committed)
        for node in accepted_nodes:
            bits = [bit for bit in range(tree.members[node].bit_length()) if tree.members[node] >> bit & 1]
            self.accepted_by_member.update(bits)
            if len(bits) == 1:
                self.accepted_alone.update(bits)

    def record_depths(self, num_nodes: int, tree_depth: int, num_accepted: int, num_committed: int) -> None:
        """Add one step whose nodes are known by number only."""
        self.num_steps += 1
        self.num_committed += num_committed
        self.num_nodes += num_nodes
        self.drafted_by_depth.update(range(1, tree_depth + 1))
        self.accepted_by_depth.update(range(1, num_accepted + 1))

    @property
    def tokens_per_step(self) -> float | None:
        return self.num_committed / self.num_steps if self.num_steps else None

    @property
    def nodes_per_step(self) -> float | None:
        return self.num_nodes / self.num_steps if self.num_steps else None

    def __add__(self, other: StepCounts) -> StepCounts:
        return StepCounts(
            self.num_steps + other.num_steps,
            self.num_committed + other.num_committed,
            self.num_nodes + other.num_nodes,
            self.drafted_by_depth + other.drafted_by_depth,
            self.accepted_by_depth + other.accepted_by_depth,
            self.accepted_by_member + other.accepted_by_member,
            self.accepted_alone + other.accepted_alone,
        )

    def to_json(self) -> dict[str, object]:
        counters = ("drafted_by_depth", "accepted_by_depth", "accepted_by_member", "accepted_alone")
        return {
            "num_steps": self.num_steps,
            "num_committed": self.num_committed,
            "num_nodes": self.num_nodes,
            "tokens_per_step": self.tokens_per_step,
            **{name: dict(sorted(getattr(self, name).items())) for name in counters},
        }


@dataclass(frozen=True, slots=True)
class Success:
    """How often the target's token was among the first 1, 2, .. `MAX_WIDTH` children."""

    num_positions: int = 0
    num_hits: tuple[int, ...] = (0,) * MAX_WIDTH

    @classmethod
    def of_places(cls, places: Iterable[int]) -> Success:
        """From the target's token's place (0 = first child) at each position."""
        listed = list(places)
        return cls(len(listed), tuple(sum(place < width for place in listed) for width in range(1, MAX_WIDTH + 1)))

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Shares of positions, 0 to 1, by number of children."""
        return tuple(hits / self.num_positions if self.num_positions else None for hits in self.num_hits)

    def __add__(self, other: Success) -> Success:
        hits = zip(self.num_hits, other.num_hits, strict=True)
        return Success(self.num_positions + other.num_positions, tuple(one + two for one, two in hits))

    def to_json(self) -> dict[str, object]:
        return {"num_positions": self.num_positions, "rates": self.rates}


T = TypeVar("T", bound=Addable)


class ByCategory(Generic[T]):
    """Sums by category of the prompt, and over all of them."""

    def __init__(self) -> None:
        self._sums: dict[str, T] = {}

    def add(self, category: str, part: T) -> None:
        self._sums[category] = self._sums[category] + part if category in self._sums else part

    def total(self) -> T | None:
        """The sum over every prompt (so long answers weigh more); None while there is none."""
        total: T | None = None
        for part in self._sums.values():
            total = part if total is None else total + part
        return total

    def get(self, category: str) -> T | None:
        return self._sums.get(category)

    def items(self) -> Iterator[tuple[str, T]]:
        yield from sorted(self._sums.items())


def by_category_json(sums: ByCategory[StepCounts] | ByCategory[Success]) -> Mapping[str, object]:
    """The sums as JSON: `all`, then each category."""
    total = sums.total()
    return {"all": total.to_json() if total else None, **{name: part.to_json() for name, part in sums.items()}}
