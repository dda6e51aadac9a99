"""The outermost frame of a service process: read the settings, run, and leave with an exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from specgrove.config.load import load_config
from specgrove.errors import ConfigError, SpecgroveError

ConfigT = TypeVar("ConfigT")

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_log = logging.getLogger(__name__)


def run_with_config(
    cls: type[ConfigT],
    service: str,
    serve: Callable[[ConfigT], Awaitable[int | None]],
    *,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    """The exit code of `serve(config)`, run on a fresh event loop with the settings of this process.

    0 (or what `serve` returns) when it ends, 2 with every problem on stderr when the settings are wrong (a port in use
    counts), 1 on another error of ours, 130 on Ctrl-C. Foreign exceptions pass: their traceback is wanted.
    """
    try:
        config = load_config(
            cls,
            service=service,
            argv=sys.argv[1:] if argv is None else argv,
            environ=os.environ if environ is None else environ,
        )
        return asyncio.run(_awaited(serve(config))) or 0
    except ConfigError as error:
        print(f"specgrove {service}: {error.message}", file=sys.stderr)
        return EXIT_USAGE
    except SpecgroveError as error:
        _log.debug("the service ended with an error", exc_info=error)
        print(f"specgrove {service}: {error.message}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


async def _awaited(result: Awaitable[int | None]) -> int | None:
    return await result
