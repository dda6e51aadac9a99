"""The bench as a command: options, models, measuring, report, comparison."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from specgrove.errors import SpecgroveError
from specgrove.text import Tokenizer
from specgrove_bench import step_profile
from specgrove_bench.contender import Contender, Pair
from specgrove_bench.gateway import GatewayClient
from specgrove_bench.lineup import line_up
from specgrove_bench.machine import Machine
from specgrove_bench.measure import measure, warm_up
from specgrove_bench.modes import MODES, PREFIX_SYSTEM
from specgrove_bench.options import ROOT, BenchOptions, parse_options
from specgrove_bench.plan import plan
from specgrove_bench.plot import plot
from specgrove_bench.prompts import BenchPrompt, load_prompts
from specgrove_bench.regression import differing_options, read_result, regressions
from specgrove_bench.report import markdown
from specgrove_bench.request import AskFailed
from specgrove_bench.result import Measurements, Result, build_result
from specgrove_bench.step_profile import StepTimes
from specgrove_bench.systems import blocks_of, kv_tokens_for, running_systems
from specgrove_bench.warm_prefix import prefix_trials
from specgrove_local.models import TARGET_NAME, default_ssms, ensure_target

_PROFILE_TIMEOUT_S = 600
_PREFIX_ROOM = 256  # tokens of the prefix system's cache beyond prefixes


def main(argv: Sequence[str]) -> int:
    """0; 1 when something failed or `--compare` found a regression. The tables go to stdout, the rest to stderr."""
    options = parse_options(argv)
    try:
        earlier = read_result(options.compare[0]) if options.compare else None
        if len(options.compare) == 2:
            later = read_result(options.compare[1])
        else:
            result = asyncio.run(_run(options))
            later = _write(result, options.out)
    except (SpecgroveError, AskFailed) as error:
        _say(f"failed: {error}")
        return 1
    except KeyboardInterrupt:
        _say("stopped")
        return 1
    if earlier is None:
        return 0
    for line in differing_options(later, earlier):
        _say(f"not run alike: {line}")
    found = regressions(later, earlier, options.tolerance)
    for line in found:
        _say(f"worse than in {options.compare[0]}: {line}")
    _say(f"{len(found)} ratios are worse than in {options.compare[0]}")
    return 1 if found else 0


async def _run(options: BenchOptions) -> Result:
    machine = Machine.of_this_run()
    pair = _models(options)
    if not pair.ssms:
        _say("no SSM is given or shipped: drafters have prompt lookup only, and modes that need an SSM are left out")
        options = replace(options, modes=tuple(mode for mode in options.modes if not MODES[mode].needs_ssm))
    prompts = load_prompts(
        options.prompts,
        Tokenizer.load(pair.target),
        count=options.num_prompts,
        max_prompt_tokens=options.max_prompt_tokens,
    )
    began = time.monotonic()
    contenders, seen = await _measured(options, pair, prompts)
    return build_result(machine, options, prompts, contenders, seen, time.monotonic() - began)


async def _measured(
    options: BenchOptions, pair: Pair, prompts: Sequence[BenchPrompt]
) -> tuple[list[Contender], Measurements]:
    seen = Measurements()
    kv_tokens = kv_tokens_for([len(prompt.token_ids) for prompt in prompts], options)
    async with AsyncExitStack() as stack:
        contenders = await line_up(options, pair, kv_tokens, _say, stack)
        blocks = plan(options, [contender.competitor for contender in contenders], len(prompts))
        await warm_up(contenders, prompts[0], options)
        seen.runs = await measure(options, blocks, contenders, prompts, _say)
    if options.prefix_trials:
        await _prefixes(options, pair, prompts, seen)
    if options.with_profile:
        _say("profiling a target step")
        seen.profile = _profile(pair.target)
    return contenders, seen


async def _prefixes(options: BenchOptions, pair: Pair, prompts: Sequence[BenchPrompt], seen: Measurements) -> None:
    kv_tokens = blocks_of(2 * options.prefix_tokens + _PREFIX_ROOM)
    with running_systems([PREFIX_SYSTEM], options, pair, kv_tokens, _say) as systems:
        client = GatewayClient(systems[PREFIX_SYSTEM].gateway_grpc_address)
        try:
            _say("cold and warm prefixes")
            seen.trials = await prefix_trials(
                client, prompts, num_trials=options.prefix_trials, prefix_len=options.prefix_tokens
            )
        finally:
            await client.close()


def _profile(target: Path) -> list[StepTimes]:
    """In a process of its own: threads of this one have served transformers, and would be in its way."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); from specgrove_bench import step_profile"
    code += "; sys.exit(step_profile.main(sys.argv[1:]))"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        argv = [sys.executable, "-c", code, "--json", str(path), "--model", str(target)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PROFILE_TIMEOUT_S, cwd=ROOT, check=False)
        if done.returncode:  # an hour's measurements are not thrown away for it
            _say(f"the step profile failed and is left out: {done.stderr[-600:]}")
            return []
        return step_profile.read(path)


def _models(options: BenchOptions) -> Pair:
    cache = ROOT / ".cache"
    target = options.model or ensure_target(cache, report=_say)
    ssms = options.ssms or (default_ssms() if options.model is None else ())
    return Pair(target, tuple(ssms), options.gguf or cache / "downloads" / f"{TARGET_NAME}.gguf")


def _write(result: Result, given: Path | None) -> dict[str, object]:
    """Print and write the result; what was written, as read again."""
    report = markdown(result)
    print(report)
    out = given or ROOT / "bench" / "results" / time.strftime("%Y%m%d-%H%M%S.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(result.to_json_text())
    out.with_suffix(".md").write_text(report + "\n")
    out.with_suffix(".svg").write_text(plot(result))
    _say(f"\nwritten to {out}, with .md and .svg beside it")
    return read_result(out)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
