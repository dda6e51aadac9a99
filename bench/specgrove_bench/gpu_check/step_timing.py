"""Verification steps against plain decoding: milliseconds a step, tokens a step, and the bytes that bound both.

Three ways: the kernels called by hand, the runtime's own path, and that with decode steps recorded as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from transformers import LlamaConfig

from specgrove_bench.gpu_check.acceptance import SyntheticAcceptance
from specgrove_bench.gpu_check.llama_step import StepStand, random_llama
from specgrove_bench.gpu_check.runtime_model import on_kernels, runtime_llama
from specgrove_bench.gpu_check.runtime_step import RuntimeStand
from specgrove_bench.gpu_check.timing import StepTiming, median_ms
from specgrove_kernels.backend import KernelSet


class Stand(Protocol):
    """Runs steps and counts what they commit."""

    num_steps: int
    num_committed: int

    def step(self) -> object: ...


class MakeStand(Protocol):
    """A stand of one way to run a step."""

    def __call__(
        self, *, prefixes: Sequence[int], parents: Sequence[int], acceptance: SyntheticAcceptance
    ) -> Stand: ...


# Two chains of 8 and 7 nodes under the root: 16 rows, depth 8.
DEFAULT_TREE = (-1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)


def time_steps(
    config: LlamaConfig,
    kernels: KernelSet,
    device: torch.device,
    bytes_per_s: float,
    acceptance: SyntheticAcceptance,
    *,
    dtype: torch.dtype = torch.bfloat16,
    batches: tuple[int, ...] = (1, 4, 16),
    prefix_len: int = 1024,
    tree: tuple[int, ...] = DEFAULT_TREE,
    repeats: int = 20,
) -> list[StepTiming]:
    """Medians of a step by batch size, with trees of shape `tree` and without."""
    model = random_llama(config, device, dtype)
    weight_bytes = sum(weight.nbytes for weight in model.parameters()) - model.get_input_embeddings().weight.nbytes  # type: ignore[operator]
    loaded = runtime_llama(model, config)
    ways: dict[str, MakeStand] = {
        "kernels by hand": partial(StepStand, model, config, kernels),
        "runtime": partial(RuntimeStand, on_kernels(loaded, kernels, is_padded=False), kernels),
        "runtime, recorded": partial(RuntimeStand, on_kernels(loaded, kernels, is_padded=True), kernels),
    }
    timings = []
    for num_sequences in batches:
        prefixes = [prefix_len] * num_sequences
        moved = weight_bytes + sum(prefixes) * loaded.kv_shape.slot_bytes
        for way, make in ways.items():
            stands = [make(prefixes=prefixes, parents=parents, acceptance=acceptance) for parents in (tree, (-1,))]
            tree_ms, plain_ms = (median_ms(stand.step, device, repeats) for stand in stands)
            committed = stands[0].num_committed / (stands[0].num_steps * num_sequences)
            floor_ms = moved / bytes_per_s * 1e3
            timings.append(
                StepTiming(num_sequences, prefix_len, len(tree), tree_ms, plain_ms, committed, floor_ms, way)
            )
    return timings
