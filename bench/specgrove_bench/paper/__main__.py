"""`python -m specgrove_bench.paper`, with bench/ on the path: what `make paper` runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from specgrove.errors import ConfigError, SpecgroveError
from specgrove_bench.paper.options import default_out, parse_options
from specgrove_bench.paper.run import run


def main(argv: Sequence[str]) -> int:
    """0; 1 when something failed, 2 when the options are wrong. The tables go to stdout, the rest to stderr."""
    try:
        options = parse_options(argv)
        report = run(options, _say)
    except ConfigError as error:
        _say(error.message)
        return 2
    except SpecgroveError as error:
        _say(f"failed: {error.message}")
        return 1
    except KeyboardInterrupt:
        _say("stopped")
        return 1
    print(report.markdown())
    written = report.write(options.out or default_out(time.strftime("%Y%m%d-%H%M%S")))
    _say("written to " + ", ".join(map(str, written)))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
