"""Made-up requests, blocks and clients for the tests of the bench."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from specgrove_bench.contender import Contender
from specgrove_bench.loadgen import LoadRun
from specgrove_bench.machine import Machine
from specgrove_bench.measure import BlockRun
from specgrove_bench.options import parse_options
from specgrove_bench.plan import Block, ClosedLoop, Competitor, Load
from specgrove_bench.prompts import BenchPrompt
from specgrove_bench.request import Answer, Ask, AskFailed, Chunk, Record, SpeculationCounts
from specgrove_bench.result import Measurements, Result, build_result
from specgrove_bench.verifier_page import PageSums

MACHINE = Machine("cpu", 2, "AVX2", 0.1, "3.11", "2.13", "5.24", 2)


def answer_of(*chunks: tuple[float, int], counts: SpeculationCounts | None = None) -> Answer:
    """Chunks as (seconds since the request was sent, tokens); token ids count up from 1."""
    num_tokens = sum(number for _, number in chunks)
    return Answer(tuple(Chunk(*chunk) for chunk in chunks), tuple(range(1, num_tokens + 1)), counts)


def even_answer(ttft_s: float, tpot_s: float, num_tokens: int) -> Answer:
    """One token a chunk at an even pace."""
    return answer_of(*((ttft_s + place * tpot_s, 1) for place in range(num_tokens)))


def block_run(
    competitor: str, answers: Sequence[Answer], *, load: Load | None = None, round: int = 0, duration_s: float = 1.0
) -> BlockRun:
    """A block whose requests were all sent at its start, for prompts 0, 1, ..."""
    own = load or ClosedLoop(1)
    records = tuple(Record(place, f"category-{place}", 0.0, 0.0, answer) for place, answer in enumerate(answers))
    max_tokens = max((answer.num_tokens for answer in answers), default=1)
    block = Block(own, round, competitor, tuple(range(len(answers))), max_tokens)
    page = PageSums(step_s=0.3, num_steps=3, step_rows=6, draft_s=0.02, num_drafts=2, num_fallbacks=1)
    return BlockRun(block, LoadRun(records, duration_s, duration_s), page)


def result_of(runs: Sequence[BlockRun], *argv: str, engines: Sequence[str] = ()) -> Result:
    """The result of made-up runs; competitors in `engines` are not ours."""
    names = list(dict.fromkeys(run.block.competitor for run in runs))
    contenders = [
        Contender(Competitor(name), f"the {name}", FakeClient(), page_url=None if name in engines else "http://page")
        for name in names
    ]
    prompts = [BenchPrompt(f"category-{place}", (1, 2)) for place in range(4)]
    return build_result(MACHINE, parse_options(argv), prompts, contenders, Measurements(list(runs)), 12.0)


class FakeClient:
    """Answers after `delay_s`, and remembers how many requests it had at once. `fails` picks the prompts it refuses."""

    def __init__(self, delay_s: float = 0.0, fails: Callable[[int], bool] = lambda prompt: False) -> None:
        self._delay_s = delay_s
        self._fails = fails
        self._num_running = 0
        self.most_at_once = 0
        self.asked: list[int] = []

    async def close(self) -> None:
        """Nothing to close."""

    async def ask(self, ask: Ask) -> Answer:
        self.asked.append(ask.prompt)
        self._num_running += 1
        self.most_at_once = max(self.most_at_once, self._num_running)
        try:
            await asyncio.sleep(self._delay_s)
        finally:
            self._num_running -= 1
        if self._fails(ask.prompt):
            raise AskFailed("the server answered 500")
        return even_answer(self._delay_s / 2, self._delay_s / 8, 2)
