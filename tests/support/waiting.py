"""Waiting for a condition with a deadline: the only way tests here wait for another process, thread or task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

_TICK_S = 0.01


def wait_until(condition: Callable[[], object], *, timeout_s: float, what: str, tick_s: float = _TICK_S) -> float:
    """Seconds until `condition()` was true; AssertionError naming `what` after `timeout_s`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(tick_s)
    return time.monotonic() - began


async def until(condition: Any, timeout_s: float = 10.0) -> None:
    """Returns once `condition()`, plain or async, is true."""
    async with asyncio.timeout(timeout_s):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            await asyncio.sleep(_TICK_S)
