"""What a verifier gets for a base: a draft, or a decline that says why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specgrove.draft import ChildLaw
from specgrove.tree import TokenTree


class DeclineReason(StrEnum):
    """Why there is no tree for a base."""

    NOTHING_TO_PROPOSE = "nothing_to_propose"
    NO_CAPACITY = "no_capacity"
    LOST_PLACE = "lost_place"


@dataclass(frozen=True, slots=True)
class Decline:
    session_key: int
    base_len: int
    reason: DeclineReason


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree under a base, ready to be sent. `draft_s`: from the arrival of the base to here."""

    session_key: int
    base_len: int
    base_hash: int
    tree: TokenTree
    draft_s: float
    laws: tuple[ChildLaw, ...] = ()  # what the nodes were drawn from, under rule mss


Answer = Draft | Decline
