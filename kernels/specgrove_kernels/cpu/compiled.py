"""The door to Numba, which compiles loops over arrays for the processor they run on. No C compiler is needed.

Sums may be taken in another order than they are written in (that is what makes them fast), but in the same one for the
same lengths: a result never depends on what else is in the batch. Infinities and NaN are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}


def is_available() -> bool:
    """Whether loops can be compiled here. Does not import Numba."""
    return find_spec("numba") is not None


def compiled(function: Function) -> Function:
    """`function`, compiled at its first call for each set of argument types; kept on disk where there is a place.

    Runs without the interpreter's lock. Indices are not checked.
    """
    return _compile(function, _FAST_MATH)


def compiled_in_order(function: Function) -> Function:
    """As `compiled`, with every sum in the order it is written in: for functions that are vectorised by hand."""
    return _compile(function, {"contract"})


@contextmanager
def told_after(delay_s: float, log: logging.Logger, message: str) -> Iterator[None]:
    """Log `message` (info) if what runs inside takes longer than this: a person may be waiting."""
    timer = Timer(delay_s, log.info, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _compile(function: Function, fast_math: set[str]) -> Function:
    import numba

    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy", "fastmath": fast_math}
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep it (a read-only file system): compiled again at every start
        return numba.njit(**options)(function)
    # Numba knows kept code by the date of the function's own file, but what it calls lies in others.
    kept = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if kept is not None and hasattr(kept, "_source_stamp"):
        kept._source_stamp = (kept._source_stamp, _folder_stamp())
    return dispatcher


@cache
def _folder_stamp() -> tuple[tuple[str, int, int], ...]:
    """Name, date and size of each file beside this one."""
    files = [(file, file.stat()) for file in sorted(Path(__file__).parent.glob("*.py"))]
    return tuple((file.name, stat.st_mtime_ns, stat.st_size) for file, stat in files)
