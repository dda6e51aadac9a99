"""Memory for weights that are read from end to end: in a few large pieces, which Linux can back with large pages.

NumPy asks for them (`madvise`) where an allocation has 4 MB or more. Without them a stream from memory is a fifth
slower.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_PIECE_BYTES = 32 << 20
_ALIGNMENT = 64  # a cache line: no load crosses two

Bytes = npt.NDArray[np.uint8]
_newest: list[tuple[Bytes, int]] = []  # the piece that is being given away, and how much of it has been


def room_for(num_bytes: int) -> Bytes:  # [num_bytes], not cleared
    """A part of a large piece; the piece lives as long as any of its parts. For load time: one thread at a time."""
    piece, used = _newest.pop() if _newest else (np.empty(0, dtype=np.uint8), 0)
    if used + num_bytes > len(piece):
        piece = np.empty(max(_PIECE_BYTES, num_bytes + _ALIGNMENT), dtype=np.uint8)
        used = -piece.ctypes.data % _ALIGNMENT
    end = used + num_bytes
    _newest.append((piece, end + -(piece.ctypes.data + end) % _ALIGNMENT))
    return piece[used:end]
