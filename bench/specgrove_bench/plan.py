"""What is run in which order: every load's modes in turns, so that a noisy minute hits all of them alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgrove_bench.options import BenchOptions


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` clients, each of which sends its next request when the last is answered."""

    concurrency: int

    @property
    def key(self) -> str:
        return f"closed-{self.concurrency}"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals at `rate` requests a second, or at a share of what plain decoding reached closed-loop."""

    rate: float | None = None
    share: float | None = None

    @property
    def key(self) -> str:
        return f"open-{self.rate:g}rps" if self.rate is not None else f"open-{self.share:.0%}"


Load = ClosedLoop | OpenLoop


@dataclass(frozen=True, slots=True)
class Competitor:
    """As much of a mode or engine as the plan must know."""

    name: str
    max_concurrency: int | None = None
    max_prompts: int | None = None  # at concurrency 1
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Some requests to one competitor under one load. Blocks of the same load and round carry the same prompts."""

    load: Load
    round: int
    competitor: str
    prompts: tuple[int, ...]
    max_tokens: int


def plan(options: BenchOptions, competitors: Sequence[Competitor], num_prompts: int) -> list[Block]:
    """All blocks: one client prompt by prompt, then the closed loops, then the open ones.

    The competitor that begins rotates from round to round.
    """
    blocks: list[Block] = []
    for prompt in range(num_prompts):
        fit = [one for one in competitors if one.max_prompts is None or prompt < one.max_prompts]
        blocks += _round(ClosedLoop(1), prompt, fit, (prompt,), options.max_tokens)
    wide = [one for one in competitors if one.max_concurrency is None]
    for number in range(options.rounds):
        for concurrency in options.concurrency[1:]:
            prompts = _some(num_prompts, concurrency * options.requests_per_client, number)
            blocks += _round(ClosedLoop(concurrency), number, wide, prompts, options.load_tokens)
    for number in range(options.rounds):
        for load in open_loads(options):
            prompts = _some(num_prompts, options.open_requests, number)
            blocks += _round(load, number, wide, prompts, options.load_tokens)
    return blocks


def open_loads(options: BenchOptions) -> tuple[OpenLoop, ...]:
    """The open loops that were asked for."""
    shares = (OpenLoop(share=share) for share in options.open_shares)
    return (*shares, *(OpenLoop(rate=rate) for rate in options.open_rates))


def _round(
    load: Load, number: int, competitors: Sequence[Competitor], prompts: tuple[int, ...], max_tokens: int
) -> list[Block]:
    shift = number % len(competitors)
    return [
        Block(load, number, one.name, prompts, min(max_tokens, one.max_tokens or max_tokens))
        for one in (*competitors[shift:], *competitors[:shift])
    ]


def _some(num_prompts: int, count: int, start: int) -> tuple[int, ...]:
    """`count` prompts in turn, each round from another one on."""
    return tuple((start + place) % num_prompts for place in range(count))
