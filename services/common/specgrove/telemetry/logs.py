"""Logs as JSON lines on stderr: one object a line, ready for any collector."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from specgrove.errors import ConfigError
from specgrove.telemetry.log_context import current_log_context

LEVELS = ("debug", "info", "warning", "error")

# Chatty below warning, and what they say is about themselves.
_QUIET_LIBRARIES = ("asyncio", "httpcore", "httpx", "urllib3", "filelock", "grpc", "transformers", "torch")

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure_logging(service: str, level: str, *, stream: TextIO | None = None) -> None:
    """Sends every log line of this process to stderr (or `stream`) as JSON; `level` is debug, info, warning or error.

    A line has time (UTC), level, service, logger, message, the fields of `log_context`, whatever came as `extra`, and
    the traceback if there is one. Called again it replaces what it set up before. ConfigError for an unknown level.
    """
    if level.lower() not in LEVELS:
        raise ConfigError([f"log level must be one of {', '.join(LEVELS)}; got {level!r}"])
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object on one line."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": _message(record),
        }
        for name, value in [*current_log_context().items(), *_extras(record)]:
            line.setdefault(name, value)
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return _json(line)


def _json(line: dict[str, object]) -> str:
    try:
        return json.dumps(line, default=str, allow_nan=False)
    except (ValueError, TypeError):  # NaN, a cycle or a key that JSON lacks: such a field becomes text
        return json.dumps({name: value if isinstance(value, str) else repr(value) for name, value in line.items()})


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # a bad format string must not lose the line, nor the request that wrote it
        return f"{record.msg} {record.args}"


def _extras(record: logging.LogRecord) -> list[tuple[str, object]]:
    return [(name, value) for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES]
