"""What is measured: the flags of `make paper ARGS=...`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from specgrove.errors import ConfigError, InvalidInput
from specgrove.sampling.params import SamplingParams
from specgrove_bench.options import ROOT, SHARED_PROMPTS
from specgrove_bench.paper.prompt_choice import PromptChoice
from specgrove_drafter.members.member import MAX_MEMBERS

TABLES = {
    "a": "success rate of an SSM's first 1 to 5 children",
    "b": "tokens per step by width of <1,1,k,1,1,1,1,1>",
    "c": "verification rules at width 5",
    "d": "expansion against merge",
    "e": "single members against the pool",
    "f": "cost of an SSM level against a target step",
}
_MODEL_FREE_AND_SPARE = 2


@dataclass(frozen=True, slots=True)
class PaperOptions:
    """Everything that decides what a run measures; it is written into the JSON."""

    tables: tuple[str, ...]
    prompts: PromptChoice
    max_tokens: int
    temperature: float
    seed: int
    max_nodes: int  # of the best-first trees of table e
    max_depth: int
    batch: int
    target: Path | None
    ssm: tuple[Path, ...]
    out: Path | None

    def __post_init__(self) -> None:
        problems = []
        unknown = [letter for letter in self.tables if letter not in TABLES]
        if unknown or not self.tables:
            problems.append(f"--tables: no table {', '.join(unknown) or 'named'}; there are {', '.join(TABLES)}")
        for flag, value, least in (
            ("--max-tokens", self.max_tokens, 2),
            ("--max-nodes", self.max_nodes, 1),
            ("--max-depth", self.max_depth, 1),
            ("--batch", self.batch, 1),
            ("--num-prompts", self.prompts.count, 1),
            ("--every", self.prompts.every, 0),
            ("--max-prompt-tokens", self.prompts.max_prompt_tokens, 2),
        ):
            if value < least:
                problems.append(f"{flag} must be at least {least}, got {value}")
        if self.temperature <= 0:
            problems.append(f"--temperature must be above 0, got {self.temperature}; greedy is measured anyway")
        try:
            SamplingParams(temperature=self.temperature, seed=self.seed)
        except InvalidInput as error:
            problems.append(error.message)
        if len(self.ssm) > MAX_MEMBERS - _MODEL_FREE_AND_SPARE:
            problems.append(f"--ssm: at most {MAX_MEMBERS - _MODEL_FREE_AND_SPARE} fit in one drafter")
        if problems:
            raise ConfigError(problems)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError([message])


def parse_options(argv: Sequence[str]) -> PaperOptions:
    """The options of a command line. Raises `ConfigError` when they are wrong; exits with 0 for --help."""
    parser = _Parser(prog="make paper", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    listed = "; ".join(f"{letter}: {title}" for letter, title in TABLES.items())
    add("--tables", default=",".join(TABLES), help=listed)
    add("--prompts", type=Path, default=None, help="JSON lines with category and turns; default: the bench's own")
    add("--num-prompts", type=int, default=13, help="spread over the categories")
    add("--every", type=int, default=0, help="take each n-th prompt of every category instead; 1 = all")
    add("--categories", default="", help="only these, comma separated; default: all")
    add("--max-tokens", type=int, default=128, help="tokens of an answer at most")
    add("--max-prompt-tokens", type=int, default=512, help="longer prompts are passed over")
    add("--temperature", type=float, default=1.0, help="of everything that is not greedy")
    add("--seed", type=int, default=1, help="of the sampling; each prompt gets one of its own from it")
    add("--max-nodes", type=int, default=12, help="nodes of the best-first trees of table e")
    add("--max-depth", type=int, default=8, help="depth of these trees")
    add("--batch", type=int, default=13, help="prompts side by side: more is faster and takes more memory")
    add("--target", type=Path, default=None, help="target's folder or GGUF file; default: the demo's, fetched once")
    add("--ssm", type=Path, nargs="+", default=[], help="SSM folders, the best first; default: the shipped ones")
    add("--out", type=Path, default=None, help="folder to write to; default: bench/results/paper-TIME")
    given = parser.parse_args(argv)
    if given.prompts is not None and not given.prompts.is_file():
        raise ConfigError([f"--prompts: there is no file {given.prompts}"])
    return PaperOptions(
        tables=_names(given.tables),
        prompts=PromptChoice(
            path=given.prompts or SHARED_PROMPTS,
            count=given.num_prompts,
            every=given.every,
            categories=_names(given.categories),
            max_prompt_tokens=given.max_prompt_tokens,
        ),
        max_tokens=given.max_tokens,
        temperature=given.temperature,
        seed=given.seed,
        max_nodes=given.max_nodes,
        max_depth=given.max_depth,
        batch=given.batch,
        target=given.target,
        ssm=tuple(given.ssm),
        out=given.out,
    )


def default_out(stamp: str) -> Path:
    """Where a run writes that was given no folder."""
    return ROOT / "bench" / "results" / f"paper-{stamp}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
