"""The bench as a command: options, models, measuring, report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from specgrove.errors import SpecgroveError
from specgrove.text import Tokenizer
from specgrove_bench.machine import Machine
from specgrove_bench.measure import measure
from specgrove_bench.options import ROOT, BenchOptions, parse_options
from specgrove_bench.prompts import load_prompts
from specgrove_bench.regression import regressions
from specgrove_bench.report import Result, build_result, markdown
from specgrove_local.models import default_ssms, ensure_target


def main(argv: Sequence[str]) -> int:
    """0; 1 when something failed or `--compare` found a regression. The table goes to stdout, the rest to stderr."""
    options = parse_options(argv)
    try:
        result = _run(options)
    except SpecgroveError as error:
        _say(f"failed: {error.message}")
        return 1
    except KeyboardInterrupt:
        _say("stopped")
        return 1
    print(markdown(result))
    out = options.out or ROOT / "bench" / "results" / time.strftime("%Y%m%d-%H%M%S.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result.to_json(), indent=1) + "\n")
    _say(f"\nwritten to {out}")
    if options.compare is None:
        return 0
    found = regressions(result, options.compare, options.tolerance)
    for line in found:
        _say(f"worse than in {options.compare}: {line}")
    return 1 if found else 0


def _run(options: BenchOptions) -> Result:
    machine = Machine.of_this_run()
    target = options.model or ensure_target(ROOT / ".cache", report=_say)
    ssms = options.ssms or (default_ssms() if options.model is None else ())
    if not ssms:
        _say("no SSM is given or shipped: drafters have prompt lookup only, chain and tree are left out")
        options = _without_ssm(options)
    prompts = load_prompts(
        options.prompts,
        Tokenizer.load(target),
        count=options.num_prompts,
        max_prompt_tokens=options.max_prompt_tokens,
    )
    began = time.monotonic()
    seen = measure(options, prompts, target, ssms, _say)
    return build_result(machine, options, prompts, seen, time.monotonic() - began)


def _without_ssm(options: BenchOptions) -> BenchOptions:
    return replace(options, modes=tuple(mode for mode in options.modes if mode not in ("chain", "tree")))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
