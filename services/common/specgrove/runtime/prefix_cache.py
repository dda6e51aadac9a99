"""Which blocks hold the keys and values of which tokens: a block is known by a hash of all tokens up to its end.

    tokens     [ t0 t1 t2 t3 | t4 t5 t6 t7 | t8 ..        block size 4
    hashes       h0 = H(t0..t3)  h1 = H(h0, t4..t7)       the third block is not full: it has none

A block's keys and values depend on every token before it, so equal hashes mean equal contents. Contents may lie in
several places (two sessions that computed them side by side, or a copy that keeps a session in one run).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_HASH_BYTES = 16  # 2**64 blocks until two are likely to be mistaken; nobody can make a collision


def extend_block_hashes(hashes: list[bytes], token_ids: Sequence[int], block_size: int) -> None:
    """Append the hashes of the full blocks of `token_ids` that `hashes` lacks; it is about their beginning already."""
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        block = array("q", token_ids[start : start + block_size]).tobytes()
        hashes.append(blake2b((hashes[-1] if hashes else b"") + block, digest_size=_HASH_BYTES).digest())


class PrefixIndex:
    """Finds blocks by hash."""

    def __init__(self) -> None:
        self._blocks_of: dict[bytes, list[int]] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._hash_of)

    def add(self, block: int, block_hash: bytes) -> None:
        """`block` holds the contents of this hash from now on, and must not be written to until it is removed."""
        self._hash_of[block] = block_hash
        self._blocks_of.setdefault(block_hash, []).append(block)

    def remove(self, block: int) -> None:
        block_hash = self._hash_of.pop(block)
        places = self._blocks_of[block_hash]
        places.remove(block)
        if not places:
            del self._blocks_of[block_hash]

    def longest_prefix(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Blocks that hold the longest known beginning of a sequence, in one run where there is one."""
        known = []
        for block_hash in block_hashes:
            if block_hash not in self._blocks_of:
                break
            known.append(self._blocks_of[block_hash])
        if not known:
            return []
        ends = known[-1]
        return max((_towards_start(known, end) for end in reversed(ends)), key=_num_neighbours)


def _towards_start(known: Sequence[Sequence[int]], end: int) -> list[int]:
    """One block for each hash, from the last one's, `end`, on: the left neighbour where it is one, else the newest."""
    path = [end]
    for places in reversed(known[:-1]):
        path.append(path[-1] - 1 if path[-1] - 1 in places else places[-1])
    path.reverse()
    return path


def _num_neighbours(path: Sequence[int]) -> int:
    return sum(path[place] + 1 == path[place + 1] for place in range(len(path) - 1))
