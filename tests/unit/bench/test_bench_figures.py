"""The bench's arithmetic, without running anything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specgrove_bench.figures import Run, figures_of
from specgrove_bench.gateway import TimedAnswer
from specgrove_bench.machine import Machine
from specgrove_bench.measure import Measurements
from specgrove_bench.modes import MODES, system_flags
from specgrove_bench.options import parse_options
from specgrove_bench.prompts import BenchPrompt
from specgrove_bench.reference import ReferenceAnswer
from specgrove_bench.regression import regressions
from specgrove_bench.report import Result, build_result, markdown
from specgrove_bench.verifier_page import PageSums

_PLAIN = TimedAnswer(
    token_ids=(1, 2, 3, 4, 5),
    first_token_s=0.5,
    decode_s=0.4,
    num_decoded=4,
    num_steps=5,
    num_drafts=0,
    num_draft_tokens=0,
    num_accepted_tokens=0,
    accepted_per_depth=(),
    drafted_per_depth=(),
)
_SPECULATIVE = replace(
    _PLAIN,
    decode_s=0.2,
    num_steps=3,
    num_drafts=2,
    num_draft_tokens=8,
    num_accepted_tokens=2,
    accepted_per_depth=(2, 0),
    drafted_per_depth=(2, 1),
)
_MACHINE = Machine("cpu", 2, "AVX2", 0.1, "3.11", "2.13", "5.24", 2)


def _runs(answer: TimedAnswer) -> list[Run]:
    return [Run(0, answer, PageSums(step_s=0.3, num_steps=3, draft_s=0.02, num_drafts=2, num_fallbacks=1))]


def _result(*argv: str, speculative: TimedAnswer = _SPECULATIVE) -> Result:
    seen = Measurements({"off": _runs(_PLAIN), "dynamic": _runs(speculative)}, [ReferenceAnswer((1, 2), 0.35)])
    options = parse_options(["--modes", "dynamic", *argv])
    return build_result(_MACHINE, options, [BenchPrompt("own", (1, 2))], seen, 12.0)


def test_figures_compare_each_prompt_with_its_own_plain_run() -> None:
    figures = figures_of(_runs(_SPECULATIVE), _runs(_PLAIN))
    assert figures.time_per_token_s == pytest.approx(0.05)
    assert figures.speedup == pytest.approx(2.0)
    assert figures.mean_accepted_len == pytest.approx(5 / 3)
    assert figures.acceptance_by_depth == (1.0, 0.0)
    assert (figures.step_s, figures.draft_s, figures.num_fallbacks) == (pytest.approx(0.1), pytest.approx(0.01), 1)
    assert figures.is_identical


def test_answer_of_one_chunk_has_no_time_per_token() -> None:
    short = replace(_PLAIN, token_ids=(1,), num_decoded=0, decode_s=0.0)
    figures = figures_of(_runs(short), _runs(short))
    assert figures.time_per_token_s is None
    assert figures.speedup is None


def test_different_tokens_are_reported_in_words() -> None:
    assert "All modes gave the same tokens." in markdown(_result())
    wrong = replace(_SPECULATIVE, token_ids=(1, 2, 3, 4, 6))
    assert "Answers differ" in markdown(_result(speculative=wrong))


def test_table_and_json_carry_the_reference_and_every_mode(tmp_path: Path) -> None:
    result = _result()
    assert "3.5 times as fast as transformers" in markdown(result)
    written = json.loads(json.dumps(result.to_json()))
    assert set(written["modes"]) == {"off", "dynamic"}
    assert written["transformers"]["ratio_to_off"] == pytest.approx(3.5)
    assert written["runs"]["dynamic"][0]["num_tokens"] == 5


def test_comparison_names_only_ratios_that_got_worse_beyond_the_tolerance(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(_result().to_json()))
    assert regressions(_result(), earlier, 0.1) == []
    slower = _result(speculative=replace(_SPECULATIVE, decode_s=0.3))
    assert regressions(slower, earlier, 0.1) == ["dynamic: speedup 1.33, was 2.00"]
    assert regressions(slower, earlier, 0.5) == []


def test_off_is_always_measured_and_unknown_modes_are_refused() -> None:
    assert parse_options(["--modes", "tree"]).modes == ("off", "tree")
    with pytest.raises(SystemExit):
        parse_options(["--modes", "sideways"])


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_has_flags_for_its_system(mode: str) -> None:
    flags = system_flags(MODES[mode].system, parse_options(["--tree", "2,2,1", "--max-nodes", "12"]))
    if mode == "tree":
        assert flags.verifier == ("--budget", "fixed", "--max-nodes", "10", "--max-depth", "3")
    elif mode != "chain":
        assert flags.verifier[-2:] == ("--max-nodes", "12")
