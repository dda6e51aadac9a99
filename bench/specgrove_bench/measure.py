"""The measuring itself: the plan's blocks one after the other, each with what the verifier's page says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from specgrove_bench.contender import Contender
from specgrove_bench.loadgen import LoadRun, closed_loop, open_loop, poisson_arrivals
from specgrove_bench.modes import PLAIN
from specgrove_bench.options import BenchOptions
from specgrove_bench.plan import Block, ClosedLoop
from specgrove_bench.progress import Progress, Say
from specgrove_bench.prompts import BenchPrompt
from specgrove_bench.request import Ask
from specgrove_bench.verifier_page import PageSums, read_sums

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class BlockRun:
    """A block and what came of it."""

    block: Block
    load: LoadRun
    page: PageSums | None  # None for engines that are not ours
    rate: float | None = None  # arrivals a second, in open loops


async def warm_up(contenders: Sequence[Contender], prompt: BenchPrompt, options: BenchOptions) -> None:
    """One short answer each: the first forwards of a process are slow. Raises `AskFailed`."""
    for contender in contenders:
        await contender.client.ask(ask_for(options, prompt, 0, _WARM_UP_TOKENS, contender.speculation))


async def measure(
    options: BenchOptions,
    blocks: Sequence[Block],
    contenders: Sequence[Contender],
    prompts: Sequence[BenchPrompt],
    say: Say,
) -> list[BlockRun]:
    """Run all blocks in their order. Requests that fail are in the records; nothing is raised for them."""
    by_name = {contender.name: contender for contender in contenders}
    progress = Progress(blocks, say)
    runs: list[BlockRun] = []
    for block in blocks:
        progress.begin(block)
        contender = by_name[block.competitor]
        asks = [
            ask_for(options, prompts[prompt], prompt, block.max_tokens, contender.speculation)
            for prompt in block.prompts
        ]
        before = read_sums(contender.page_url) if contender.page_url else None
        rate = None
        if isinstance(block.load, ClosedLoop):
            load = await closed_loop(contender.client, asks, block.load.concurrency)
        else:
            rate = block.load.rate if block.load.rate is not None else (block.load.share or 1.0) * capacity(runs)
            arrivals_s = poisson_arrivals(rate, len(asks), seed=options.seed + block.round)
            load = await open_loop(contender.client, asks, arrivals_s)
        page = read_sums(contender.page_url) - before if contender.page_url and before else None
        runs.append(BlockRun(block, load, page, rate))
        progress.end(block)
    return runs


def capacity(runs: Sequence[BlockRun]) -> float:
    """Requests a second of plain decoding at the concurrency where it answered most of them; the median of its rounds.

    Answers at concurrency 1 may be longer than those of the open loops, so it counts only if there is nothing else.
    """
    by_level: dict[int, list[float]] = {}
    for run in runs:
        load = run.block.load
        if run.block.competitor == PLAIN and isinstance(load, ClosedLoop):
            num_ok = sum(record.is_ok for record in run.load.records)
            by_level.setdefault(load.concurrency, []).append(num_ok / run.load.duration_s)
    above_one = {level: rates for level, rates in by_level.items() if level > 1} or by_level
    return max(median(rates) for rates in above_one.values())


def ask_for(options: BenchOptions, prompt: BenchPrompt, place: int, max_tokens: int, speculation: bool) -> Ask:
    """The request for a prompt; its seed is the prompt's, so that sampled answers are the same in every mode too."""
    return Ask(
        prompt=place,
        category=prompt.category,
        token_ids=prompt.token_ids,
        max_tokens=max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed + place,
        ignore_eos=options.ignore_eos,
        speculation=speculation,
    )
