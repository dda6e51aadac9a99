"""How long drafts take by how many sessions are drafted for together: what a grant to so many has to wait for."""

from __future__ import annotations

_WEIGHT = 0.1


class DraftLatency:
    """Commit to tree, as moving means, by the number of sessions in powers of two."""

    def __init__(self) -> None:
        self._mean_s: dict[int, float] = {}  # by bit length of the number
        self._count: dict[int, float] = {}  # the mean number of sessions behind it

    def observe(self, num_sessions: int, seconds: float) -> None:
        """A draft came `seconds` after its commit while so many sessions were drafted for."""
        size = num_sessions.bit_length()
        mean_s, count = self._mean_s.get(size, seconds), self._count.get(size, float(num_sessions))
        self._mean_s[size] = mean_s + _WEIGHT * (seconds - mean_s)
        self._count[size] = count + _WEIGHT * (num_sessions - count)

    def expected_s(self, num_sessions: int) -> float:
        """Of `num_sessions` drafted for together; 0 while nothing was measured.

        Of a size that was never seen: fewer take no longer than the next more, and more take longer in proportion. A
        guess on the dear side costs a probe later; one on the cheap side costs every step until it is found out.
        """
        size = num_sessions.bit_length()
        if size in self._mean_s:
            return self._mean_s[size]
        fewer = max((known for known in self._mean_s if known < size), default=None)
        if fewer is not None:
            return self._mean_s[fewer] * num_sessions / max(self._count[fewer], 1.0)
        return self._mean_s[min(self._mean_s)] if self._mean_s else 0.0
