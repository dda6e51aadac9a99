"""Who earns what: draft nodes by the ensemble member that proposed them, so that a useless one can be seen and dropped.

node        proposed by               accepted      counts for
a           ssm and prompt_lookup     yes           both, as accepted
b           ssm                       yes           ssm, as accepted and as accepted alone: without it b was lost
c           prompt_lookup             no            prompt_lookup, as proposed only
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from specgrove.telemetry import CollectorRegistry, Counter
from specgrove.tree import TokenTree
from specgrove_verifier.mailbox import MEMBER_BITS

_MAX_LABEL_LEN = 64  # names come from the drafter

_Place = tuple[int, int]  # (place of the drafter among the tree's proposers, bit number of the member)


class Proposer(Protocol):
    """A drafter as it is named to operators; `member_names[i]` is bit i of its nodes' members."""

    @property
    def drafter_id(self) -> str: ...

    @property
    def member_names(self) -> Sequence[str]: ...


class MemberMetrics:
    """Counters by drafter and member. A series ends with the last stream that could add to it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["drafter", "member"]
        self._proposed = Counter(
            "specgrove:spec_decode_num_draft_tokens_by_member", "Draft nodes verified", labels, registry=registry
        )
        self._accepted = Counter(
            "specgrove:spec_decode_num_accepted_tokens_by_member", "Draft tokens kept", labels, registry=registry
        )
        self._accepted_alone = Counter(
            "specgrove:spec_decode_num_accepted_tokens_only_member",
            "Draft tokens kept that no other member of any drafter proposed",
            labels,
            registry=registry,
        )
        self._members_of: dict[str, set[str]] = {}  # the labels in use, by drafter

    def record(self, tree: TokenTree, accepted_nodes: Iterable[int], proposers: Sequence[Proposer | None]) -> None:
        """Count a verified tree. `proposers[i]` owns the i-th `MEMBER_BITS` bits of a node's members; None has left."""
        masks = [tree.members[node] for node in accepted_nodes]
        self._add(self._proposed, tree.members, proposers)
        self._add(self._accepted, masks, proposers)
        self._add(self._accepted_alone, [mask for mask in masks if mask.bit_count() == 1], proposers)

    def forget(self, drafter: Proposer, others: Iterable[Proposer]) -> None:
        """Drop the series of a drafter whose stream ended, but for those that one of `others` counts in too."""
        drafter_label = _drafter_label(drafter)
        same = [other for other in others if _drafter_label(other) == drafter_label]
        kept = {_member_label(other, bit) for other in same for bit in range(MEMBER_BITS)}
        known = self._members_of.pop(drafter_label, set())
        for member_label in known - kept:
            for counter in (self._proposed, self._accepted, self._accepted_alone):
                counter.remove(drafter_label, member_label)
        if known & kept:
            self._members_of[drafter_label] = known & kept

    def _add(self, counter: Counter, masks: Iterable[int], proposers: Sequence[Proposer | None]) -> None:
        tally = Tally(place for mask in masks for place in _places(mask))
        for (proposer, bit), count in tally.items():
            drafter = proposers[proposer] if proposer < len(proposers) else None
            if drafter is not None:
                drafter_label, member_label = self._labels_of(drafter, bit)
                counter.labels(drafter_label, member_label).inc(count)

    def _labels_of(self, drafter: Proposer, bit: int) -> tuple[str, str]:
        drafter_label, member_label = _drafter_label(drafter), _member_label(drafter, bit)
        if member_label not in (known := self._members_of.setdefault(drafter_label, set())):
            known.add(member_label)
            for counter in (self._proposed, self._accepted, self._accepted_alone):
                counter.labels(drafter_label, member_label)  # there from the start, at zero
        return drafter_label, member_label


def _drafter_label(drafter: Proposer) -> str:
    return drafter.drafter_id[:_MAX_LABEL_LEN]


def _member_label(drafter: Proposer, bit: int) -> str:
    names = drafter.member_names
    return names[bit][:_MAX_LABEL_LEN] if bit < len(names) else f"member {bit}"


def _places(mask: int) -> Iterator[_Place]:
    """Who set the bits of a node's members."""
    while mask:
        lowest = mask & -mask
        yield divmod(lowest.bit_length() - 1, MEMBER_BITS)
        mask ^= lowest
