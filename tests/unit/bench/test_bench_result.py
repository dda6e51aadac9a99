"""From made-up runs to figures, ratios, promises, report, JSON, plot, and the comparison of two runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgrove.errors import InvalidInput
from specgrove_bench import cli
from specgrove_bench.checks import Check, Verdict
from specgrove_bench.figures import Goals, figures_of
from specgrove_bench.measure import BlockRun
from specgrove_bench.plan import ClosedLoop, OpenLoop
from specgrove_bench.plot import plot
from specgrove_bench.regression import differing_options, read_result, regressions
from specgrove_bench.report import markdown
from specgrove_bench.request import Answer, SpeculationCounts
from specgrove_bench.result import Result
from specgrove_bench.stats import Spread
from specgrove_bench.warm_prefix import prefix_pair, prefix_trials
from support.bench_records import FakeClient, answer_of, block_run, even_answer, result_of

_COUNTS = SpeculationCounts(3, 2, 8, 2, accepted_per_depth=(2, 0), drafted_per_depth=(2, 1))
_PLAIN = even_answer(0.5, 0.1, 5)
_FAST = replace(answer_of((0.5, 1), (0.6, 3), (0.7, 1)), counts=_COUNTS)


def _runs(fast: Answer = _FAST, rounds: int = 3) -> list[BlockRun]:
    solo = [
        block_run(name, [answer], round=number)
        for number in range(rounds)
        for name, answer in (("off", _PLAIN), ("controller", fast), ("transformers", even_answer(0.5, 0.4, 5)))
    ]
    four = [
        block_run(name, [answer] * 8, load=ClosedLoop(4), round=number, duration_s=2.0)
        for number in range(rounds)
        for name, answer in (("off", _PLAIN), ("controller", fast))
    ]
    return [*solo, *four, block_run("off", [_PLAIN] * 2, load=OpenLoop(share=0.5))]


def _result(*argv: str, fast: Answer = _FAST) -> Result:
    return result_of(_runs(fast), *argv, engines=["transformers"])


def _json(result: Result) -> dict[str, Any]:
    return dict(json.loads(result.to_json_text()))


def test_cell_has_rates_over_rounds_and_percentiles_over_requests() -> None:
    cell = figures_of([block_run("off", [_PLAIN] * 4, duration_s=2.0)], Goals(tpot_s=0.2))
    assert cell.request_throughput == Spread(2.0, 2.0, 2.0, 1)
    assert cell.output_throughput == Spread(10.0, 10.0, 10.0, 1)
    assert cell.goodput == Spread(2.0, 2.0, 2.0, 1)
    assert cell.ttft_s is not None
    assert cell.ttft_s.p99 == pytest.approx(0.5)
    assert cell.tpot_by_category["category-3"] == pytest.approx(0.1)
    assert cell.page is not None
    assert (cell.page.step_s, cell.page.step_rows, cell.page.forward_share) == (
        pytest.approx(0.1), pytest.approx(2.0), pytest.approx(0.15),
    )  # fmt: skip


def test_goodput_counts_only_requests_within_the_goals() -> None:
    answers = [even_answer(0.5, 0.1, 5), even_answer(0.5, 0.3, 5), Answer((), error="gone")]
    cell = figures_of([block_run("off", answers, duration_s=1.0)], Goals(ttft_s=1.0, tpot_s=0.2))
    assert cell.goodput is not None
    assert (cell.goodput.median, cell.num_failed) == (1.0, 1)
    assert figures_of([block_run("off", answers)], Goals()).goodput is None


def test_ratios_compare_the_same_prompt_and_round_with_plain_decoding() -> None:
    ratios = _result().ratios
    assert ratios["closed-1/controller/speedup"].spread.median == pytest.approx(2.0)
    assert ratios["closed-4/controller/throughput"].spread.median == pytest.approx(1.0)
    assert ratios["closed-1/controller/tokens_per_step"].spread.median == pytest.approx(5 / 3)
    assert ratios["closed-1/transformers/speedup"].spread.median == pytest.approx(0.25)
    assert not ratios["closed-1/transformers/speedup"].is_more_better


def test_promises_say_what_was_reached_and_leave_out_what_was_not_measured() -> None:
    by_name = {check.name: check for check in _result().checks}
    assert by_name["controller over off, time per token, 1 client"].verdict is Verdict.MET
    assert by_name["controller over transformers generate, 1 client"].spread.median == pytest.approx(8.0)
    assert not any("vllm" in name or "no drafter" in name for name in by_name)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.99, 0.99, 1.0), Verdict.MET), ((1.2, 1.2, 1.21), Verdict.MISSED), ((0.9, 1.03, 1.2), Verdict.UNCLEAR)],
)
def test_promise_is_open_where_the_noise_is_wider_than_the_gap(values: Sequence[float], verdict: Verdict) -> None:
    spread = Spread.of(values)
    assert spread is not None
    assert Check("cost of off", spread, 1.02, at_least=False).verdict is verdict


@pytest.mark.parametrize("load", ["closed-1", "closed-4"])
def test_answer_that_differs_from_the_solo_plain_one_is_named(load: str) -> None:
    assert "All modes gave the same tokens" in markdown(_result())
    wrong = replace(_FAST, token_ids=(1, 2, 3, 9, 5))
    result = _result(fast=wrong)
    assert {one.load for one in result.differences} == {"closed-1", "closed-4"}
    assert {(one.competitor, one.position) for one in result.differences} == {("controller", 3)}
    assert f"controller at {load}, prompt 0, token 3" in markdown(result)


def test_short_answer_under_load_is_held_to_the_beginning_of_the_long_one() -> None:
    short = block_run("controller", [even_answer(0.5, 0.1, 3)], load=ClosedLoop(2))
    assert result_of([*_runs(), short], engines=["transformers"]).differences == []


def test_answer_that_ends_early_differs() -> None:
    early = replace(block_run("controller", [even_answer(0.5, 0.1, 3)], load=ClosedLoop(2)))
    early = replace(early, block=replace(early.block, max_tokens=5))
    assert [one.position for one in result_of([*_runs(), early], engines=["transformers"]).differences] == [3]


def test_report_has_every_load_and_says_how_many_requests_failed() -> None:
    runs = [*_runs(), block_run("controller", [Answer((), error="the gateway answered X")], load=OpenLoop(rate=2.0))]
    text = markdown(result_of(runs, "--goodput", "tpot:200", engines=["transformers"]))
    for words in ("One client", "4 clients, closed loop", "Open loop, 50%", "Open loop, 2rps", "Promises"):
        assert f"### {words}" in text
    assert "1 requests failed: the gateway answered X." in text


def test_json_carries_every_request_and_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(_result().to_json_text())
    written = read_result(path)
    assert len(written["requests"]) == 3 * 3 + 3 * 16 + 2
    assert written["requests"][1]["chunks_ms"] == [[500.0, 1], [600.0, 3], [700.0, 1]]
    assert written["options"]["modes"] == list(_result().options.modes)


def test_plot_is_well_formed_and_has_a_panel_for_what_was_measured() -> None:
    drawn = plot(_result())
    ElementTree.fromstring(drawn)
    assert "tokens a second at full load" in drawn
    assert "goodput" not in drawn


def test_comparison_names_a_ratio_that_got_worse_beyond_tolerance_and_noise() -> None:
    slower = _json(_result(fast=replace(_FAST, chunks=even_answer(0.5, 0.08, 5).chunks)))
    found = regressions(slower, _json(_result()), 0.1)
    assert "closed-1/controller/speedup 1.25 ±0.00, was 2.00 ±0.00" in found
    assert regressions(_json(_result()), _json(_result()), 0.1) == []
    assert regressions(slower, _json(_result()), 0.5) == []


@pytest.mark.parametrize(
    ("better", "now", "is_worse"), [("more", 0.7, True), ("less", 0.7, False), ("less", 1.4, True)]
)
def test_comparison_knows_which_way_is_better(better: str, now: float, is_worse: bool) -> None:
    def run(median: float) -> dict[str, Any]:
        return {"ratios": {"key": {"median": median, "notch": 0.01, "better": better}}}

    assert bool(regressions(run(now), run(1.0), 0.1)) is is_worse


def test_loss_within_the_noise_of_both_runs_is_no_regression() -> None:
    noisy, calm = ({"ratios": {"key": {"median": m, "notch": n, "better": "more"}}} for m, n in ((0.8, 0.15), (1, 0.1)))
    assert regressions(noisy, calm, 0.1) == []


def test_runs_of_unlike_options_and_other_formats_are_named(tmp_path: Path) -> None:
    assert differing_options(_json(_result("--load-tokens", "8")), _json(_result())) == ["load_tokens 8, was 24"]
    old = tmp_path / "old.json"
    old.write_text('{"modes": {}}')
    with pytest.raises(InvalidInput, match="run the bench again"):
        read_result(old)


def test_two_files_are_compared_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier, later = tmp_path / "earlier.json", tmp_path / "later.json"
    earlier.write_text(_result().to_json_text())
    later.write_text(_result(fast=replace(_FAST, chunks=even_answer(0.5, 0.08, 5).chunks)).to_json_text())
    assert cli.main(["--compare", str(earlier), str(earlier)]) == 0
    assert cli.main(["--compare", str(earlier), str(later)]) == 1
    assert "closed-1/controller/speedup" in capsys.readouterr().err


def test_prefix_pairs_share_their_beginning_and_no_trial_begins_like_another() -> None:
    pool = list(range(10, 90))
    pairs = [prefix_pair(pool, trial, 50) for trial in range(8)]
    for cold, warm in pairs:
        assert cold[:50] == warm[:50]
        assert cold[50] != warm[50]
    assert len({cold[0] for cold, _ in pairs}) == len(pairs)


async def test_first_pair_of_prefixes_warms_up_and_is_not_counted() -> None:
    client = FakeClient(0.001)
    trials = await prefix_trials(client, result_of(_runs()).prompts, num_trials=2, prefix_len=20)
    assert len(trials) == 2
    assert len(client.asked) == 2 * 3
