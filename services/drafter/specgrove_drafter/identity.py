"""Who speaks on a draft stream: what each end says of itself in Hello and Welcome."""

from __future__ import annotations

from dataclasses import dataclass

from specgrove.features import NO_FEATURES, FeatureLayout
from specgrove_drafter.jobs import Budget


@dataclass(frozen=True, slots=True)
class DrafterIdentity:
    """What a drafter says of itself in Hello."""

    drafter_id: str
    incarnation: str
    vocab_hash: str
    members: tuple[str, ...]
    max_sessions: int
    features: FeatureLayout = NO_FEATURES  # what its members want to know of the target


@dataclass(frozen=True, slots=True)
class VerifierIdentity:
    """What a verifier says of itself in Welcome."""

    verifier_id: str
    incarnation: str
    model: str
    vocab_size: int
    max_budget: Budget
