"""What is measured: the flags of `make bench ARGS=...`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specgrove_bench.modes import DEFAULT_MODES, MODES

ROOT = Path(__file__).parents[2]
SHARED_PROMPTS = ROOT.parent / "shared" / "data" / "prompts.jsonl"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Everything that decides what a run measures; it is written into the JSON."""

    modes: tuple[str, ...]
    num_prompts: int
    max_tokens: int
    max_prompt_tokens: int
    chain: str
    tree: str
    num_transformers_prompts: int
    transformers_tokens: int
    max_nodes: int | None
    ssms: tuple[Path, ...]
    model: Path | None
    prompts: Path
    out: Path | None
    compare: Path | None
    tolerance: float
    run_dir: Path


def parse_options(argv: Sequence[str]) -> BenchOptions:
    """The options of a command line. Exits with 2 and a message when they are wrong, with 0 for --help."""
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add(
        "--modes",
        default=",".join(DEFAULT_MODES),
        help=f"of {', '.join(MODES)}; off is always measured",
    )
    add("--prompts", type=Path, default=SHARED_PROMPTS, help="JSON lines with category and turns; own ones if missing")
    add("--num-prompts", type=int, default=13, help="spread over the categories")
    add("--max-tokens", type=int, default=128, help="tokens of an answer at most")
    add("--max-prompt-tokens", type=int, default=512, help="longer prompts are passed over")
    add("--chain", default="1,1,1,1", help="expansion config of the mode chain")
    add("--tree", default="2,2,1", help="expansion config of the mode tree")
    add("--max-nodes", type=int, default=None, help="node limit of the dynamic modes; default: the verifier's own")
    add(
        "--transformers-prompts",
        type=int,
        default=4,
        help="so many of the prompts go through transformers too",
    )
    add("--transformers-tokens", type=int, default=48, help="tokens of such an answer at most")
    add("--model", type=Path, default=None, help="target's folder; default: the demo's, fetched once")
    add("--ssm", type=Path, nargs="+", default=(), help="folders of the SSMs; default: that of make run")
    add("--out", type=Path, default=None, help="JSON file to write; default: bench/results/TIME.json")
    add("--compare", type=Path, default=None, help="an earlier JSON; exit 1 when a ratio got worse than --tolerance")
    add("--tolerance", type=float, default=0.1, help="relative loss that --compare lets pass")
    add("--run-dir", type=Path, default=ROOT / ".run" / "bench", help="where the services log to")
    given = parser.parse_args(argv)
    modes = tuple(name for name in given.modes.split(",") if name)
    unknown = [name for name in modes if name not in MODES]
    if unknown:
        parser.error(f"--modes: no mode {', '.join(unknown)}; there are {', '.join(MODES)}")
    if given.num_prompts < 1 or given.max_tokens < 2:
        parser.error("--num-prompts must be at least 1 and --max-tokens at least 2")
    if given.compare is not None and not given.compare.is_file():
        parser.error(f"--compare: there is no file {given.compare}")
    return BenchOptions(
        modes=("off", *(name for name in modes if name != "off")),
        num_prompts=given.num_prompts,
        max_tokens=given.max_tokens,
        max_prompt_tokens=given.max_prompt_tokens,
        chain=given.chain,
        tree=given.tree,
        num_transformers_prompts=given.transformers_prompts,
        transformers_tokens=given.transformers_tokens,
        max_nodes=given.max_nodes,
        ssms=tuple(given.ssm),
        model=given.model,
        prompts=given.prompts,
        out=given.out,
        compare=given.compare,
        tolerance=given.tolerance,
        run_dir=given.run_dir,
    )
