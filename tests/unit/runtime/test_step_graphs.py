"""Recorded steps: eager first, recorded second, replayed on new inputs, bounded, and given up where recording fails."""

from __future__ import annotations

import numpy as np
import torch

from specgrove.runtime.step_graphs import StepGraphs, Tensors
from support.paged_models import ReplayingCapture

CPU = torch.device("cpu")


def squares(inputs: Tensors) -> Tensors:
    return (inputs[0].float() ** 2,)


def run(graphs: StepGraphs, key: object, *values: int) -> list[float]:
    (output,) = graphs.run(str(key), [np.array(values, dtype=np.int64)], squares)
    return output.tolist()


def test_a_bucket_runs_eagerly_then_is_recorded_then_replayed_on_what_comes() -> None:
    capture = ReplayingCapture()
    graphs = StepGraphs(capture, CPU)
    seen = []
    for step in range(4):
        assert run(graphs, "two", step, 3) == [step**2, 9]
        seen.append((capture.num_recorded, capture.num_replayed))
    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2)]


def test_outputs_of_all_buckets_lie_in_one_place() -> None:
    graphs = StepGraphs(ReplayingCapture(), CPU)
    for _ in range(3):
        for size in (3, 2, 1):
            (output,) = graphs.run(size, [np.arange(size, dtype=np.int64)], squares)
            assert output.tolist() == [number**2 for number in range(size)]
    assert graphs.num_recorded == 3
    replayed = {graphs.run(size, [np.arange(size, dtype=np.int64)], squares)[0].data_ptr() for size in (3, 2, 1)}
    assert len(replayed) == 1


def test_buckets_of_any_order_and_size_give_what_they_should() -> None:
    graphs = StepGraphs(ReplayingCapture(), CPU)
    for _ in range(4):
        assert run(graphs, "a", 2) == [4]
        assert run(graphs, "b", 3, 4) == [9, 16]
    assert graphs.num_recorded == 2


def test_the_bucket_used_longest_ago_is_forgotten() -> None:
    capture = ReplayingCapture()
    graphs = StepGraphs(capture, CPU, max_graphs=2)
    for key in ("a", "a", "b", "b", "a", "c", "c"):
        run(graphs, key, 5)
    assert (graphs.num_recorded, capture.num_recorded, capture.num_forgotten) == (2, 3, 1)
    assert run(graphs, "a", 6) == [36]
    assert capture.num_recorded == 3  # "a" was still there; "b" was not
    run(graphs, "b", 6)
    run(graphs, "b", 6)
    assert run(graphs, "b", 7) == [49]
    assert capture.num_recorded == 4


def test_work_that_cannot_be_recorded_runs_eagerly_from_then_on() -> None:
    capture = ReplayingCapture(max_records=1)
    graphs = StepGraphs(capture, CPU)
    for value in (2, 3, 4):
        assert run(graphs, "a", value) == [value**2]
    for value in (2, 3, 4):
        assert run(graphs, "b", value) == [value**2]
    assert graphs.is_off
    assert run(graphs, "a", 9) == [81]  # what was recorded before is replayed on
    assert (graphs.num_recorded, capture.num_replayed) == (1, 2)
