"""The GPU check: what it says without a GPU, that it notices a wrong kernel, and that its step runs."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from specgrove_bench.gpu_check import cli
from specgrove_bench.gpu_check.acceptance import SyntheticAcceptance, tree_tokens
from specgrove_bench.gpu_check.cases import Rows
from specgrove_bench.gpu_check.correctness import Outcome, check_all, small_grid
from specgrove_bench.gpu_check.llama_step import StepStand, random_llama
from specgrove_bench.gpu_check.report import GpuReport
from specgrove_bench.gpu_check.seam import check_seam
from specgrove_bench.gpu_check.step_timing import time_steps
from specgrove_bench.gpu_check.timing import StepTiming, Timing
from specgrove_kernels.backend import KernelSet, has_triton, reference_kernels

CPU = torch.device("cpu")
TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 50,
}


def test_every_kernel_passes_the_small_grid(kernels: KernelSet) -> None:
    outcomes = list(check_all(kernels, small_grid(), CPU))
    assert [outcome for outcome in outcomes if not outcome.passed] == []
    assert {outcome.operation for outcome in outcomes} == {
        "paged tree attention",
        "KV write",
        "KV compaction",
        "token choice",
        "tree walk",
    }


def test_a_wrong_kernel_fails() -> None:
    right = reference_kernels()

    def scaled(*arguments: Any, **options: Any) -> torch.Tensor:
        return right.paged_tree_attention(*arguments, **options) * 1.01

    def nowhere(key: torch.Tensor, value: torch.Tensor, storage: torch.Tensor, slots: torch.Tensor) -> None:
        return None

    broken = replace(right, paged_tree_attention=scaled, write_kv=nowhere)
    failed = {outcome.operation for outcome in check_all(broken, small_grid(), CPU) if not outcome.passed}
    assert {"paged tree attention", "KV write"} <= failed


def test_a_difference_that_is_no_number_fails() -> None:
    assert not Outcome("walk", "any", float("nan"), 1.0).passed


@pytest.mark.parametrize("argv", [[], ["--checks-only"]])
def test_without_a_gpu_it_says_so_and_exits_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv, has_gpu=False) == cli.CANNOT_RUN
    message = capsys.readouterr().err
    assert ("no NVIDIA GPU" if has_triton() else "needs Triton") in message
    assert len(message.splitlines()) == 1


def test_interpreting_needs_triton_alone(tmp_path: Path) -> None:
    status = cli.main(["--interpret", "--out", str(tmp_path)])
    if has_triton():
        assert status == 0
        assert json.loads((tmp_path / "gpu-check.json").read_text())["passed"] is True
    else:
        assert status == cli.CANNOT_RUN


def test_acceptance_by_depth_is_what_the_walk_finds(kernels: KernelSet) -> None:
    stand = _stand(kernels, SyntheticAcceptance((1.0, 1.0, 0.0)), Rows.chain(0, 5).parents)
    walks = stand.step()
    assert walks.num_accepted.tolist() == [2, 2]
    assert (stand.num_steps, stand.num_committed) == (1, 6)


def test_acceptance_is_drawn_with_its_share() -> None:
    acceptance, draw = SyntheticAcceptance((0.5,)), random.Random(0)
    parents = (-1, 0, 0)
    hits = sum(acceptance.choices(tree_tokens(parents), parents, draw)[0] > 0 for _ in range(2000))
    assert 900 < hits < 1100


def test_acceptance_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        SyntheticAcceptance.parse("0.5,1.5")


def test_an_accepted_path_stands_next_to_the_prefix() -> None:
    """The second branch of two is accepted, so its rows move; what they move must be the rows' keys and values."""
    moved = []
    kernels = reference_kernels()

    def watching(storage: torch.Tensor, source: torch.Tensor, target: torch.Tensor, starts: torch.Tensor) -> None:
        moved.append((source.tolist(), target.tolist(), starts.tolist()))
        kernels.compact_kv(storage, source, target, starts)

    parents = (-1, 0, 1, 0, 3)
    stand = _stand(replace(kernels, compact_kv=watching), SyntheticAcceptance((1.0, 1.0)), parents)
    for _ in range(8):
        walks = stand.step()
        assert walks.num_accepted.tolist() == [2, 2]
        for path in walks.accepted_nodes.tolist():
            assert path in ([1, 2], [3, 4])
    assert moved
    assert all(
        source != target for sources, targets, _ in moved for source, target in zip(sources, targets, strict=True)
    )


def test_steps_are_timed_against_plain_decoding() -> None:
    timings = time_steps(
        LlamaConfig(**TINY),
        reference_kernels(),
        CPU,
        1e9,
        SyntheticAcceptance((1.0,)),
        dtype=torch.float32,
        batches=(2,),
        prefix_len=20,
        tree=(-1, 0),
        repeats=2,
    )
    assert [timing.way for timing in timings] == ["kernels by hand", "runtime", "runtime, recorded"]
    for timing in timings:
        assert timing.tokens_per_step == 2.0
        assert timing.speed_up == pytest.approx(2 * timing.plain_ms / timing.tree_ms)


def test_the_runtimes_own_path_passes() -> None:
    outcomes = list(check_seam(reference_kernels(), CPU))
    assert [outcome for outcome in outcomes if not outcome.passed] == []
    assert len(outcomes) == 2


def test_the_runtimes_own_path_fails_on_a_wrong_kernel() -> None:
    def still(storage: torch.Tensor, source: torch.Tensor, target: torch.Tensor, starts: torch.Tensor) -> None:
        return None

    assert not any(outcome.passed for outcome in check_seam(replace(reference_kernels(), compact_kv=still), CPU))


def test_the_report_names_what_failed(tmp_path: Path) -> None:
    report = GpuReport(
        "a GPU",
        "2",
        "3",
        [Outcome("walk", "65 nodes", 1.0, 0.0), Outcome("walk", "64 nodes", 0.0, 0.0)],
        3e12,
        [Timing("token choice", "64 rows", 0.5, 1.0, 0.1)],
        (0.8,),
        [StepTiming(1, 1024, 16, 10.0, 8.0, 3.0, 6.0)],
    )
    report.write(tmp_path)
    text = (tmp_path / "gpu-check.md").read_text()
    assert "| walk | 2 | 1 | 1 |" in text
    assert "FAILED walk, 65 nodes" in text
    assert "| token choice | 64 rows | 0.500 | 1.000 | 0.100 | 2.00 |" in text
    assert "| 2.40 |" in text
    assert json.loads((tmp_path / "gpu-check.json").read_text())["passed"] is False


def _stand(kernels: KernelSet, acceptance: SyntheticAcceptance, parents: tuple[int, ...]) -> StepStand:
    config = LlamaConfig(**TINY)
    torch.manual_seed(0)
    model = random_llama(config, CPU, torch.float32)
    return StepStand(model, config, kernels, prefixes=[17, 3], parents=parents, acceptance=acceptance)
