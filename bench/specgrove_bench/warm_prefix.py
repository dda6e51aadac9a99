"""Time to first token with a warm prefix against a cold one: two requests with the same beginning and other ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from specgrove_bench.loadgen import Client
from specgrove_bench.prompts import BenchPrompt
from specgrove_bench.request import Ask
from specgrove_bench.stats import Spread

_END_LEN = 16


@dataclass(frozen=True, slots=True)
class PrefixTrial:
    """The same prefix for the first and for the second time."""

    cold_s: float
    warm_s: float

    def to_json(self) -> dict[str, object]:
        return asdict(self)


async def prefix_trials(
    client: Client, prompts: Sequence[BenchPrompt], *, num_trials: int, prefix_len: int
) -> list[PrefixTrial]:
    """Cold and warm in turns, every trial with a prefix of its own. Raises `AskFailed`."""
    pool = [token_id for prompt in prompts for token_id in prompt.token_ids]
    trials = []
    for number in range(-1, num_trials):  # the first is thrown away: a process's first long forward is slow
        cold, warm = prefix_pair(pool, number + 1, prefix_len)
        cold_s, warm_s = [await _ttft_s(client, token_ids) for token_ids in (cold, warm)]
        if number >= 0:
            trials.append(PrefixTrial(cold_s, warm_s))
    return trials


def prefix_pair(pool: Sequence[int], trial: int, prefix_len: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two prompts that share their first `prefix_len` tokens; already the first token is another in every trial.

    `pool` is text to take tokens from, over and over if it is short.
    """
    first = sorted(set(pool))[trial % len(set(pool))]
    text = [pool[(trial * _END_LEN + place) % len(pool)] for place in range(prefix_len - 1)]
    ends = [[pool[(trial + shift + place) % len(pool)] for place in range(_END_LEN)] for shift in (0, 7)]
    if ends[0] == ends[1]:  # a pool of very few tokens
        ends[1] = [*ends[1][:-1], ends[1][-1] + 1]
    return (first, *text, *ends[0]), (first, *text, *ends[1])


def warm_share(trials: Sequence[PrefixTrial]) -> Spread | None:
    """Warm over cold, pair by pair."""
    return Spread.of([trial.warm_s / trial.cold_s for trial in trials])


async def _ttft_s(client: Client, token_ids: tuple[int, ...]) -> float:
    answer = await client.ask(Ask(0, "prefix", token_ids, max_tokens=2, speculation=False))
    return answer.chunks[0].at_s
