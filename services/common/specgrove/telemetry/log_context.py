"""Which request and session the running task works for, so that every log line can say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_EMPTY: Mapping[str, str] = MappingProxyType({})
_fields: ContextVar[Mapping[str, str]] = ContextVar("specgrove_log_fields", default=_EMPTY)


@contextmanager
def log_context(**fields: object) -> Iterator[None]:
    """Every log line written inside, and in tasks started inside, carries `fields` (None: left as it was).

    Contexts nest; the inner value wins. A plain thread starts without a context: take `current_log_context()` along
    and open it there with `log_context(**fields)`.
    """
    added = {name: str(value) for name, value in fields.items() if value is not None}
    before = _fields.get()
    _fields.set(MappingProxyType({**before, **added}))
    try:
        yield
    finally:
        # Not reset(token): an async generator may be closed in another context than the one that opened it.
        _fields.set(before)


def current_log_context() -> Mapping[str, str]:
    """The fields that a log line written here would carry."""
    return _fields.get()
