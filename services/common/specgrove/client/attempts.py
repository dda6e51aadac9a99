"""How long one call may take, and how long it may be tried again before anything has come."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from specgrove.errors import SpecgroveError
from specgrove.rpc import StatusCode, error_from_rpc

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Attempts:
    """The attempts of one call: one deadline for all of them, and a budget within which UNAVAILABLE is tried again.

    Only UNAVAILABLE: whoever answered so has done nothing. A refusal says what to change, a full gateway when to come
    back, and a deadline that has passed has passed for every further attempt too.
    """

    def __init__(self, timeout_s: float, retry_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._pause_s = _FIRST_PAUSE_S

    @property
    def remaining_s(self) -> float:
        """What is left of the deadline."""
        return max(0.0, self._timeout_s - (self._clock() - self._began_s))

    def pause_after(self, error: Any) -> float:
        """Seconds to wait before the next attempt; raises our error for `error`, a failed call, if there is none."""
        pause_s = self._pause_s * random.uniform(0.5, 1.0)  # those that failed together should not come back together
        spent_s = self._clock() - self._began_s + pause_s
        if error.code() is not StatusCode.UNAVAILABLE or spent_s > min(self._retry_s, self._timeout_s):
            raise typed(error) from error
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s


def typed(error: Any) -> SpecgroveError:
    """The error of `specgrove.errors` for a failed call."""
    return error_from_rpc(error)
