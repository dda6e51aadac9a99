"""What is measured: the flags of `make bench ARGS=...`, with a quick and a full set of defaults."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specgrove_bench.modes import FULL_MODES, MODES, PLAIN, QUICK_MODES

ROOT = Path(__file__).parents[2]
SHARED_PROMPTS = ROOT.parent / "shared" / "data" / "prompts.jsonl"
ENGINES = ("transformers", "assisted", "llama.cpp", "vllm", "vllm-bf16")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Everything that decides what a run measures; it is written into the JSON."""

    modes: tuple[str, ...]
    engines: tuple[str, ...]
    prompts: Path
    num_prompts: int
    max_prompt_tokens: int
    max_tokens: int
    concurrency: tuple[int, ...]  # 1 is always the first
    rounds: int
    requests_per_client: int
    load_tokens: int
    open_shares: tuple[float, ...]
    open_rates: tuple[float, ...]
    open_requests: int
    ttft_goal_s: float | None
    tpot_goal_s: float | None
    temperature: float
    top_p: float
    seed: int
    ignore_eos: bool
    chain: str
    tree: str
    max_nodes: int | None
    transformers_prompts: int
    transformers_tokens: int
    assistant_tokens: int
    prefix_trials: int
    prefix_tokens: int
    with_profile: bool
    model: Path | None
    ssms: tuple[Path, ...]
    gguf: Path | None
    vllm: Path | None
    llama_server: Path | None
    out: Path | None
    compare: tuple[Path, ...]
    tolerance: float
    run_dir: Path

    @property
    def max_concurrency(self) -> int:
        """Requests that a closed loop has in flight at once; an open loop may have all of its own."""
        return max(*self.concurrency, self.open_requests if self.open_shares or self.open_rates else 1)


# --full asks for everything that the report has a place for; the other set takes about five minutes on two cores.
_QUICK: dict[str, Any] = {
    "modes": ",".join(QUICK_MODES),
    "num_prompts": 6,
    "max_tokens": 64,
    "concurrency": "1,4",
    "rounds": 2,
    "load_tokens": 24,
    "open": "",
    "prefix_trials": 3,
    "transformers_prompts": 2,
    "transformers_tokens": 24,
}
_FULL: dict[str, Any] = {
    "modes": ",".join(FULL_MODES),
    "num_prompts": 26,
    "max_tokens": 128,
    "concurrency": "1,2,4,8,16,32",
    "rounds": 3,
    "load_tokens": 64,
    "open": "0.5,0.8",
    "prefix_trials": 7,
    "transformers_prompts": 6,
    "transformers_tokens": 48,
}


def parse_options(argv: Sequence[str]) -> BenchOptions:
    """The options of a command line. Exits with 2 and a message when they are wrong, with 0 for --help."""
    parser = _parser()
    given = parser.parse_args(argv)
    for name, value in (_FULL if given.full else _QUICK).items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    modes = _names(parser, "--modes", given.modes, MODES)
    levels = sorted({1, *_numbers(parser, "--concurrency", given.concurrency, int)})
    goals = _goals(parser, given.goodput)
    _check(parser, given, levels)
    return BenchOptions(
        modes=(PLAIN, *(name for name in modes if name != PLAIN)),
        engines=_names(parser, "--engines", given.engines, ENGINES),
        prompts=given.prompts,
        num_prompts=given.num_prompts,
        max_prompt_tokens=given.max_prompt_tokens,
        max_tokens=given.max_tokens,
        concurrency=tuple(levels),
        rounds=given.rounds,
        requests_per_client=given.requests_per_client,
        load_tokens=min(given.load_tokens, given.max_tokens),
        open_shares=_numbers(parser, "--open", given.open, float),
        open_rates=_numbers(parser, "--rates", given.rates, float),
        open_requests=given.open_requests,
        ttft_goal_s=goals.get("ttft"),
        tpot_goal_s=goals.get("tpot"),
        temperature=given.temperature,
        top_p=given.top_p,
        seed=given.seed,
        ignore_eos=given.ignore_eos,
        chain=given.chain,
        tree=given.tree,
        max_nodes=given.max_nodes,
        transformers_prompts=given.transformers_prompts,
        transformers_tokens=min(given.transformers_tokens, given.max_tokens),
        assistant_tokens=given.assistant_tokens,
        prefix_trials=given.prefix_trials,
        prefix_tokens=given.prefix_tokens,
        with_profile=not given.no_profile,
        model=given.model,
        ssms=tuple(given.ssm),
        gguf=given.gguf,
        vllm=given.vllm,
        llama_server=given.llama_server,
        out=given.out,
        compare=tuple(given.compare),
        tolerance=given.tolerance,
        run_dir=given.run_dir,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench", description="Latency and throughput over the real services.")
    _add_what(parser.add_argument_group("what is measured (two numbers: quick default, default under --full)"))
    _add_how(parser.add_argument_group("how"))
    _add_with_what(parser.add_argument_group("with what, and where to"))
    return parser


def _add_what(group: Any) -> None:
    add = group.add_argument
    add("--full", action="store_true", help="everything: hours on a small machine; quick is about five minutes")
    add("--modes", help=f"of {', '.join(MODES)}; off is always measured")
    add("--engines", default="transformers,assisted", help=f"others beside us, of {', '.join(ENGINES)}; '' for none")
    add("--num-prompts", type=int, help="prompts, spread over the categories (6, 26)")
    add("--max-tokens", type=int, help="tokens of an answer at concurrency 1 at most (64, 128)")
    add("--max-prompt-tokens", type=int, default=512, help="longer prompts are passed over (512)")
    add("--concurrency", help="clients of the closed loops; 1 is always measured (1,4; 1,2,4,8,16,32)")
    add("--rounds", type=int, help="times that every load above one client is repeated (2, 3)")
    add("--requests-per-client", type=int, default=2, help="requests of a load above one client, times its clients (2)")
    add("--load-tokens", type=int, help="tokens of an answer at most above one client and in open loops (24, 64)")
    add("--open", help="open loops: shares of what `off` reached closed-loop, in requests a second ('', 0.5,0.8)")
    add("--rates", default="", help="open loops: requests a second")
    add("--open-requests", type=int, default=16, help="requests of an open loop (16)")
    add("--transformers-prompts", type=int, help="so many of the prompts go through transformers too (2, 6)")
    add("--transformers-tokens", type=int, help="tokens of such an answer at most (24, 48)")
    add("--assistant-tokens", type=int, default=0, help="draft length of assisted generation; 0 = transformers' own")
    add("--prefix-trials", type=int, help="pairs of cold and warm prefix; 0 = leave out (3, 7)")
    add("--prefix-tokens", type=int, default=1000, help="length of that prefix (1000)")
    add("--no-profile", action="store_true", help="leave out where a target step's time goes")


def _add_how(group: Any) -> None:
    add = group.add_argument
    add("--goodput", nargs="*", default=(), metavar="NAME:MS", help="goals, as vLLM's: ttft:2000 tpot:100")
    add("--temperature", type=float, default=0.0, help="0 = greedy (0)")
    add("--top-p", type=float, default=1.0, help="when sampling (1)")
    add("--seed", type=int, default=0, help="of sampling and of arrivals (0)")
    add("--ignore-eos", action="store_true", help="every answer has all its tokens")
    add("--chain", default="1,1,1,1", help="expansion config of the mode chain (1,1,1,1)")
    add("--tree", default="2,2,1", help="expansion config of the mode tree (2,2,1)")
    add("--max-nodes", type=int, default=None, help="node limit of the dynamic modes; default: the verifier's own")


def _add_with_what(group: Any) -> None:
    add = group.add_argument
    add("--prompts", type=Path, default=SHARED_PROMPTS, help="JSON lines with category and turns; own ones if missing")
    add("--model", type=Path, default=None, help="target's folder; default: the demo's, fetched once")
    add("--ssm", type=Path, nargs="+", default=(), help="folders of the SSMs; default: that of make run")
    add("--gguf", type=Path, default=None, help="file for llama.cpp; default: the demo's")
    add("--vllm", type=Path, default=None, help="program vllm; default: .cache/engines/vllm, or on the PATH")
    add(
        "--llama-server", type=Path, default=None, help="the program; default: .cache/engines/llama_cpp, or on the PATH"
    )
    add("--out", type=Path, default=None, help="JSON to write (.md and .svg beside); default: bench/results/TIME.json")
    add("--compare", type=Path, nargs="+", default=(), metavar=("EARLIER", "LATER"),
        help="exit 1 when a ratio got worse than in EARLIER; with LATER nothing is run")  # fmt: skip
    add("--tolerance", type=float, default=0.1, help="relative loss that --compare lets pass (0.1)")
    add("--run-dir", type=Path, default=ROOT / ".run" / "bench", help="where the services log to")


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace, levels: Sequence[int]) -> None:
    if given.num_prompts < 1 or given.max_tokens < 2 or given.load_tokens < 2:
        parser.error("--num-prompts must be at least 1, --max-tokens and --load-tokens at least 2")
    if min(given.rounds, given.requests_per_client, given.open_requests, *levels) < 1:
        parser.error("--rounds, --requests-per-client, --open-requests and --concurrency must be at least 1")
    if given.temperature < 0 or not 0 < given.top_p <= 1:
        parser.error("--temperature must not be negative, and --top-p must be above 0 and at most 1")
    if len(given.compare) > 2:
        parser.error("--compare takes one earlier JSON, or an earlier and a later one")
    for path in given.compare:
        if not path.is_file():
            parser.error(f"--compare: there is no file {path}")


def _names(parser: argparse.ArgumentParser, flag: str, text: str, known: Sequence[str] | dict[str, Any]) -> Any:
    names = tuple(name for name in text.split(",") if name)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"{flag}: no {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def _numbers(parser: argparse.ArgumentParser, flag: str, text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    try:
        return tuple(kind(word) for word in text.split(",") if word)
    except ValueError:
        parser.error(f"{flag} {text!r}: numbers with commas between them are wanted")


def _goals(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, float]:
    """Goals in seconds by name."""
    goals = {}
    for word in words:
        name, _, value = word.partition(":")
        try:
            goals[name] = float(value) / 1000
        except ValueError:
            parser.error(f"--goodput {word!r}: wanted is ttft:MILLISECONDS or tpot:MILLISECONDS")
        if name not in ("ttft", "tpot"):
            parser.error(f"--goodput {word!r}: there are ttft and tpot")
    return goals
