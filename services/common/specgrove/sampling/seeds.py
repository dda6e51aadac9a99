"""The seeds of a request's further choices. A pure function, torch-free: whoever has the seed can repeat each."""

from __future__ import annotations

import hashlib

_SEED_BITS = 53  # as drawn seeds: survives a JSON reader that keeps numbers as doubles


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index`: the request's own for the first, so that asking for more changes nothing in it."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)
