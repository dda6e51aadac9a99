"""How long each kernel takes on the GPU, beside what it could take: SDPA per sequence, and the memory's bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch.nn import functional

from specgrove_bench.gpu_check.cases import AttentionCase, AttentionInputs, Rows, inputs_of
from specgrove_kernels.backend import KernelSet
from specgrove_kernels.paged_batch import slots_of

_WARM_UPS = 5
_BATCHES = ((1, 1024), (1, 8192), (8, 2048), (32, 1024))  # sequences, prefix


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians of one operation at one size."""

    operation: str
    case: str
    kernel_ms: float
    plain_ms: float  # scaled_dot_product_attention per sequence for attention, the plain-torch reference elsewhere
    floor_ms: float  # bytes that must move, at the measured bandwidth


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One batch size: a step with trees beside a step of plain decoding."""

    num_sequences: int
    prefix_len: int
    num_nodes: int
    tree_ms: float
    plain_ms: float
    tokens_per_step: float  # of one sequence, its own token included
    floor_ms: float  # weights and prefixes read once, at the measured bandwidth
    way: str = "kernels by hand"

    @property
    def speed_up(self) -> float:
        """How many times the tokens of plain decoding come in the same time."""
        return self.tokens_per_step * self.plain_ms / self.tree_ms


def median_ms(work: Callable[[], object], device: torch.device, repeats: int = 30) -> float:
    """Median milliseconds of `work`, by CUDA events on a GPU and by the clock elsewhere."""
    for _ in range(_WARM_UPS):
        work()
    if device.type != "cuda":
        return median(_clocked_ms(work) for _ in range(repeats))
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, stop in pairs:
        start.record()
        work()
        stop.record()
    torch.cuda.synchronize(device)
    return median(start.elapsed_time(stop) for start, stop in pairs)


def measured_bytes_per_s(device: torch.device, num_bytes: int = 2**30) -> float:
    """What a copy of a large tensor reaches, reads and writes counted."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / (median_ms(lambda: target.copy_(source), device) / 1e3)


def time_attention(
    kernels: KernelSet, device: torch.device, bytes_per_s: float, trees: Sequence[int] = (1, 16, 64, 256)
) -> list[Timing]:
    """Attention of one layer of an 8B Llama (32 heads on 8, size 128, bfloat16), by tree size, batch and prefix."""
    timings = []
    for num_nodes in trees:
        for num_sequences, prefix in _BATCHES:
            rows = tuple(Rows.tree(prefix, num_nodes, seed) for seed in range(num_sequences))
            name = f"{num_sequences} sequences, {num_nodes} rows, prefix {prefix}"
            timings.append(
                _time_case(kernels, AttentionCase(name, rows, 32, 8, 128, torch.bfloat16), device, bytes_per_s)
            )
    return timings


def _time_case(kernels: KernelSet, case: AttentionCase, device: torch.device, bytes_per_s: float) -> Timing:
    inputs = inputs_of(case, device)
    scaling = case.head_dim**-0.5
    num_keys = sum(rows.prefix_len + len(rows.parents) for rows in case.sequences)
    moved = 2 * inputs.query.nbytes + 2 * num_keys * case.num_kv_heads * case.head_dim * inputs.storage.itemsize
    return Timing(
        "paged tree attention",
        case.name,
        median_ms(
            lambda: kernels.paged_tree_attention(inputs.query, inputs.storage, inputs.batch, scaling=scaling), device
        ),
        median_ms(_attention_per_sequence(case, inputs, scaling), device),
        moved / bytes_per_s * 1e3,
    )


def _attention_per_sequence(case: AttentionCase, inputs: AttentionInputs, scaling: float) -> Callable[[], object]:
    """SDPA with a mask, one call a sequence. Keys are gathered and masks built beforehand, in its favour."""
    calls = []
    start = 0
    for number, rows in enumerate(case.sequences):
        num_keys = rows.prefix_len + len(rows.parents)
        places = torch.arange(num_keys, device=inputs.query.device)
        slots = slots_of(inputs.batch.block_tables[number], places, case.block_size)
        key, value = (side[slots].transpose(0, 1).contiguous()[None] for side in inputs.storage)
        mask = torch.ones(rows.num_queries, num_keys, dtype=torch.bool)
        for row, ancestors in enumerate(rows.in_flight(()).ancestors):
            for other in range(len(rows.parents)):
                mask[row, rows.prefix_len + other] = bool(ancestors >> other & 1)
        query = inputs.query[start : start + rows.num_queries].transpose(0, 1)[None]
        start += rows.num_queries
        calls.append((query, key, value, mask.to(query.device)))

    def work() -> None:
        for query, key, value, mask in calls:
            functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True)

    return work


def time_others(
    kernels: KernelSet, reference: KernelSet, device: torch.device, bytes_per_s: float, num_layers: int = 32
) -> list[Timing]:
    """KV write, KV compaction and token choice at the shapes of an 8B Llama, 64 rows."""
    num_rows, num_slots, vocab_size = 64, 4096, 128256
    storage = torch.zeros(num_layers, 2, num_slots, 8, 128, dtype=torch.bfloat16, device=device)
    key = torch.zeros(num_rows, 8, 128, dtype=torch.bfloat16, device=device)
    slots = torch.arange(num_rows, device=device)
    starts = torch.tensor([0, 8], dtype=torch.int32, device=device)
    logits = torch.randn(num_rows, vocab_size, device=device)
    temperatures = torch.ones(num_rows, device=device)

    def row(operation: str, work: Callable[[KernelSet], object], moved: int) -> Timing:
        ours, plain = (median_ms(partial(work, operations), device) for operations in (kernels, reference))
        return Timing(operation, f"{num_rows} rows", ours, plain, moved / bytes_per_s * 1e3)

    return [
        row("KV write, one layer", lambda k: k.write_kv(key, key, storage[0], slots), 4 * key.nbytes),
        row(
            "KV compaction, 8 moves, all layers",
            lambda k: k.compact_kv(storage, slots[8:24:2].contiguous(), slots[4:12], starts),
            2 * 8 * storage[:, :, 0].nbytes,
        ),
        row("token choice", lambda k: k.choose_tokens(logits, temperatures, slots, slots), logits.nbytes),
    ]


def _clocked_ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3
