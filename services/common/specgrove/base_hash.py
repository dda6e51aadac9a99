"""The rolling hash of a committed sequence: how drafter and verifier know that they speak of the same tokens.

A polynomial hash modulo the Mersenne prime 2**61 - 1. It guards against lost and mixed-up messages, not against an
adversary: a tree under the wrong base costs speed, never a token.
"""

from __future__ import annotations

from collections.abc import Iterable

_PRIME = (1 << 61) - 1
_BASE = 1_000_003_999_877
EMPTY_HASH = 7


def extend_hash(base_hash: int, token_ids: Iterable[int]) -> int:
    """The hash of a sequence with hash `base_hash` followed by `token_ids`."""
    for token_id in token_ids:
        base_hash = (base_hash * _BASE + token_id + 1) % _PRIME
    return base_hash
