"""Waiting for a condition with a deadline: the only way tests here wait for another process."""

from __future__ import annotations

import time
from collections.abc import Callable

_TICK_S = 0.01


def wait_until(condition: Callable[[], object], *, timeout_s: float, what: str, tick_s: float = _TICK_S) -> float:
    """Seconds until `condition()` was true; AssertionError naming `what` after `timeout_s`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(tick_s)
    return time.monotonic() - began
