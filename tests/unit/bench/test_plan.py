"""What the bench runs in which order, and what it tells of the time left."""

from __future__ import annotations

from collections import Counter

import pytest

from specgrove_bench.measure import capacity
from specgrove_bench.modes import MODES, PREFIX_SYSTEM, system_flags
from specgrove_bench.options import parse_options
from specgrove_bench.plan import Block, ClosedLoop, Competitor, OpenLoop, plan
from specgrove_bench.progress import Progress
from specgrove_bench.systems import kv_tokens_for
from support.bench_records import block_run, even_answer

_OURS = [Competitor("off"), Competitor("tree"), Competitor("controller")]
_SLOW = Competitor("transformers", max_concurrency=1, max_prompts=1, max_tokens=12)


def _blocks(*argv: str, competitors: list[Competitor] | None = None, num_prompts: int = 3) -> list[Block]:
    return plan(parse_options(argv), competitors or _OURS, num_prompts)


def _of(blocks: list[Block], key: str) -> list[Block]:
    return [block for block in blocks if block.load.key == key]


def test_one_client_takes_every_prompt_in_every_mode_and_the_first_mode_rotates() -> None:
    solo = _of(_blocks(), "closed-1")
    assert Counter(block.prompts for block in solo) == {(0,): 3, (1,): 3, (2,): 3}
    assert [block.competitor for block in solo[::3]] == ["off", "tree", "controller"]


def test_blocks_of_one_round_carry_the_same_prompts() -> None:
    blocks = _of(_blocks("--concurrency", "4", "--rounds", "2"), "closed-4")
    assert len(blocks) == 2 * 3
    for number in (0, 1):
        assert len({block.prompts for block in blocks if block.round == number}) == 1
    assert len(blocks[0].prompts) == 4 * 2


def test_slow_engine_gets_few_prompts_short_answers_and_no_load() -> None:
    own = [
        block for block in _blocks("--concurrency", "2", competitors=[*_OURS, _SLOW]) if block.competitor == _SLOW.name
    ]
    assert [(block.load, block.prompts, block.max_tokens) for block in own] == [(ClosedLoop(1), (0,), 12)]


def test_open_loops_come_last_by_share_and_by_rate() -> None:
    blocks = _blocks("--open", "0.5", "--rates", "2", "--rounds", "1", "--open-requests", "5")
    assert [block.load for block in blocks[-6:]] == [OpenLoop(share=0.5)] * 3 + [OpenLoop(rate=2.0)] * 3
    assert {block.load.key for block in blocks[-6:]} == {"open-50%", "open-2rps"}


def test_capacity_is_what_plain_decoding_answered_at_its_best_level() -> None:
    runs = [
        block_run("off", [even_answer(0.1, 0.1, 3)], load=ClosedLoop(1), duration_s=0.1),
        block_run("off", [even_answer(0.1, 0.1, 3)] * 4, load=ClosedLoop(2), duration_s=2.0),
        block_run("off", [even_answer(0.1, 0.1, 3)] * 9, load=ClosedLoop(4), duration_s=3.0),
        block_run("tree", [even_answer(0.1, 0.1, 3)] * 9, load=ClosedLoop(4), duration_s=1.0),
    ]
    assert capacity(runs) == pytest.approx(3.0)


def test_time_left_follows_what_alike_blocks_took() -> None:
    now = 0.0
    lines: list[str] = []
    blocks = [Block(ClosedLoop(1), number, "off", (number,), 10) for number in range(3)]
    progress = Progress(blocks, lines.append, clock=lambda: now)
    for block in blocks[:2]:
        progress.begin(block)
        now += 5.0
        progress.end(block)
    assert progress.left_s() == pytest.approx(5.0)
    assert lines[1] == "2 of 3: closed-1, off; about 10 s left"


def test_off_and_one_client_are_always_measured() -> None:
    options = parse_options(["--modes", "tree", "--concurrency", "8"])
    assert options.modes == ("off", "tree")
    assert options.concurrency == (1, 8)


def test_full_asks_for_every_level_and_mode_of_the_contract() -> None:
    options = parse_options(["--full"])
    assert options.concurrency == (1, 2, 4, 8, 16, 32)
    assert {"off", "chain", "tree", "dynamic", "ahead", "controller"} <= set(options.modes)
    assert options.open_shares
    assert parse_options(["--full", "--rounds", "7"]).rounds == 7


def test_goals_are_given_as_vllm_gives_them() -> None:
    options = parse_options(["--goodput", "ttft:2000", "tpot:80"])
    assert (options.ttft_goal_s, options.tpot_goal_s) == (2.0, 0.08)


@pytest.mark.parametrize(
    "argv",
    [
        ["--modes", "sideways"],
        ["--engines", "abacus"],
        ["--concurrency", "two"],
        ["--concurrency", "0"],
        ["--goodput", "e2e:5"],
        ["--goodput", "ttft:soon"],
        ["--top-p", "0"],
        ["--compare", "/no/such/file.json"],
    ],
)
def test_wrong_options_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(argv)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_has_flags_for_its_system(mode: str) -> None:
    flags = system_flags(MODES[mode].system, parse_options(["--tree", "2,2,1", "--max-nodes", "12"]))
    if mode == "tree":
        assert flags.verifier[-6:] == ("--budget", "fixed", "--max-nodes", "10", "--max-depth", "3")
    elif mode == "bare":
        assert (flags.verifier[-2:], flags.num_drafters) == (("--max-nodes", "0"), 0)
    elif mode != "chain":
        assert flags.verifier[-2:] == ("--max-nodes", "12")


def test_only_the_prefix_system_keeps_a_prefix_cache() -> None:
    options = parse_options([])
    flags = [system_flags(info.system, options).verifier for info in MODES.values()]
    assert all(one[:2] == ("--prefix-cache", "off") for one in flags)
    assert "--prefix-cache" not in system_flags(PREFIX_SYSTEM, options).verifier


def test_cache_holds_the_longest_prompts_at_the_highest_load() -> None:
    options = parse_options(["--concurrency", "32", "--max-tokens", "128", "--load-tokens", "64"])
    assert kv_tokens_for([500, 100], options) >= 16 * 500 + 16 * 100 + 32 * 128
