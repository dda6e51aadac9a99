"""What is called TTFT, time per token and inter-token latency, by hand-made chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrove_bench.request import Answer, Record
from specgrove_bench.stats import Percentiles, Spread, percentile
from support.bench_records import answer_of

_values = st.lists(st.floats(0.0, 100.0, allow_nan=False), min_size=1, max_size=40)


def _record(answer: Answer, late_s: float = 0.0) -> Record:
    return Record(0, "own", 0.0, late_s, answer)


def test_time_per_token_leaves_out_all_tokens_of_the_first_chunk() -> None:
    answer = answer_of((0.5, 2), (0.8, 3), (0.9, 1))
    assert answer.num_tokens == 6
    assert answer.time_per_token_s == pytest.approx(0.4 / 4)


def test_gap_of_a_chunk_counts_once_and_is_shared_out_among_its_tokens() -> None:
    answer = answer_of((0.5, 1), (0.8, 3), (0.9, 1))
    assert list(answer.gaps_s()) == pytest.approx([0.3, 0.1])
    assert list(answer.token_gaps_s()) == pytest.approx([0.1, 0.1, 0.1, 0.1])


def test_answer_of_one_chunk_has_no_time_per_token() -> None:
    assert answer_of((0.5, 3)).time_per_token_s is None


def test_lateness_of_the_client_counts_as_waiting() -> None:
    record = _record(answer_of((0.5, 1), (0.7, 1)), late_s=0.25)
    assert record.ttft_s == pytest.approx(0.75)
    assert record.end_to_end_s == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("ttft_goal_s", "tpot_goal_s", "is_met"),
    [(0.5, 0.2, True), (0.4, 0.2, False), (0.5, 0.1, False), (None, 0.2, True), (None, None, True)],
)
def test_goodput_wants_every_goal(ttft_goal_s: float | None, tpot_goal_s: float | None, is_met: bool) -> None:
    assert _record(answer_of((0.5, 1), (0.7, 1))).meets(ttft_goal_s, tpot_goal_s) is is_met


def test_failed_request_meets_no_goal() -> None:
    assert not _record(Answer((), error="gone")).meets(None, None)


@given(values=_values, percent=st.sampled_from([0, 25, 50, 95, 99, 100]))
def test_percentiles_are_those_of_numpy(values: list[float], percent: int) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-9)


def test_no_values_have_no_percentiles_and_no_spread() -> None:
    assert Percentiles.of([]) is None
    assert Spread.of([]) is None


def test_notch_shrinks_with_the_root_of_the_number_of_values() -> None:
    few, many = Spread(1.0, 0.9, 1.1, 4), Spread(1.0, 0.9, 1.1, 16)
    assert few.notch == pytest.approx(2 * many.notch)
    assert Spread.of([1.3]).notch == 0.0  # type: ignore[union-attr]
