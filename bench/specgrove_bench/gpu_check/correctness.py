"""Each kernel against its plain-torch reference, over a grid for GPUs and a small one for the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch

from specgrove_bench.gpu_check.cases import AttentionCase, Rows, inputs_of, mixed_batch
from specgrove_kernels.backend import KernelSet, reference_kernels

# Against float32 on the same inputs: half precision rounds the softmax weights and the result.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One comparison: what is compared, the largest difference seen, and the largest allowed."""

    operation: str
    case: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance  # False for a difference that is no number


def small_grid() -> list[AttentionCase]:
    """What the interpreter does in seconds."""
    rows = (Rows.tree(15, 9, 1), Rows.chain(17, 5, num_queries=3), Rows.tree(3, 65, 2, num_queries=7))
    plain = AttentionCase("small", rows, head_dim=16)
    return [
        plain,
        replace(plain, name="small, window", sliding_window=5),
        replace(plain, name="small, cap", softcap=2.0),
        replace(plain, name="small, bfloat16, odd heads", dtype=torch.bfloat16, head_dim=24, num_heads=6),
    ]


def full_grid() -> list[AttentionCase]:
    """Head sizes, dtypes, grouping, windows, caps and block sizes; prefixes up to 8k."""
    cases = []
    for head_dim, dtype in product((64, 80, 96, 128, 256), (torch.float16, torch.bfloat16, torch.float32)):
        for prefix, (heads, kv_heads) in product((1023, 8192), ((8, 2), (3, 3), (7, 1))):
            name = f"D {head_dim}, {dtype}, heads {heads}/{kv_heads}, prefix {prefix}"
            cases.append(AttentionCase(name, mixed_batch(16, prefix), heads, kv_heads, head_dim, dtype))
    plain = AttentionCase("window 100", mixed_batch(16, 1023), 8, 2, 128, torch.bfloat16, sliding_window=100)
    return [
        *cases,
        plain,
        replace(plain, name="softcap 30", sliding_window=None, softcap=30.0),
        replace(plain, name="blocks of 7", sliding_window=None, block_size=7),
        replace(plain, name="32 plain rows", sequences=(Rows.chain(500, 1),) * 32, sliding_window=None),
    ]


def check_all(kernels: KernelSet, cases: list[AttentionCase], device: torch.device) -> Iterator[Outcome]:
    """The outcome of every comparison, one by one."""
    reference = reference_kernels()
    for case in cases:
        yield check_attention(kernels, reference, case, device)
    for operation in (_check_kv, _check_choice, _check_walk):
        yield from operation(kernels, reference, device)


def check_attention(kernels: KernelSet, reference: KernelSet, case: AttentionCase, device: torch.device) -> Outcome:
    """The largest difference between `kernels` and the reference in float32, over all rows of `case`."""
    inputs = inputs_of(case, device)

    def attend(operations: KernelSet, convert: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return operations.paged_tree_attention(
            convert(inputs.query),
            convert(inputs.storage),
            inputs.batch,
            scaling=case.head_dim**-0.5,
            sliding_window=case.sliding_window,
            softcap=case.softcap,
        ).float()

    error = (attend(kernels, lambda values: values) - attend(reference, torch.Tensor.float)).abs().max()
    return Outcome("paged tree attention", case.name, float(error), TOLERANCES[case.dtype])


def _check_kv(kernels: KernelSet, reference: KernelSet, device: torch.device) -> Iterator[Outcome]:
    for head_dim, dtype in product((24, 128), TOLERANCES):
        generator = torch.Generator(device).manual_seed(head_dim)
        drawn = torch.randn(2, 3, 9, head_dim, generator=generator, device=device)
        key, value = (part.transpose(0, 1) for part in drawn)  # rows of heads as models hand them over
        storage = torch.randn(3, 2, 64, 3, head_dim, generator=generator, device=device).to(dtype)
        slots = torch.tensor([3, 60, -1, 0, 5, 9, 63, 17, 18], device=device)
        starts = torch.tensor([0, 3, 3, 6], dtype=torch.int32, device=device)
        sources, targets = torch.tensor([[12, 14, 15, 33, 36, 37], [11, 12, 13, 32, 33, 34]], device=device)
        results = []
        for operations in (kernels, reference):
            written = storage.clone()
            operations.write_kv(key, value, written[1], slots)
            moved = written.clone()
            operations.compact_kv(moved, sources, targets, starts)
            results.append((written, moved))
        for operation, ours, theirs in zip(("KV write", "KV compaction"), *results, strict=True):
            wrong = (ours != theirs).sum()
            yield Outcome(operation, f"D {head_dim}, {dtype}", float(wrong), 0.0)


def _check_choice(kernels: KernelSet, reference: KernelSet, device: torch.device) -> Iterator[Outcome]:
    on_gpu = device.type == "cuda"
    for num_rows, vocab_size in product((1, 17, 256) if on_gpu else (3,), (1, 1023, 128256) if on_gpu else (5, 1025)):
        generator = torch.Generator().manual_seed(vocab_size)
        # Tenths, so that greedy rows have ties.
        logits = (torch.randn(num_rows, vocab_size, generator=generator) * 20).round().div(10).to(device)
        temperatures = torch.tensor([(0.0, 0.7, 1.0, 3.0)[row % 4] for row in range(num_rows)], device=device)
        seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator).to(device)
        positions = torch.randint(0, 2**33, (num_rows,), generator=generator).to(device)
        ours, theirs = (k.choose_tokens(logits, temperatures, seeds, positions) for k in (kernels, reference))
        yield Outcome("token choice", f"{num_rows} rows of {vocab_size}", float((ours != theirs).sum()), 0.0)


def _check_walk(kernels: KernelSet, reference: KernelSet, device: torch.device) -> Iterator[Outcome]:
    trees = [Rows.tree(0, num_nodes, num_nodes).parents for num_nodes in (1, 3, 17, 63, 64, 65, 256)]
    generator = torch.Generator().manual_seed(1)
    parents = torch.tensor([parent for tree in trees for parent in tree], dtype=torch.int32)
    tokens = torch.tensor([tree[:node].count(parent) for tree in trees for node, parent in enumerate(tree)])
    choices = torch.randint(0, 3, parents.shape, generator=generator)
    starts = torch.tensor([0, *map(len, trees)]).cumsum(0).to(torch.int32)
    arguments = [values.to(device) for values in (choices, tokens, parents, starts)]
    ours, theirs = (k.walk_trees(*arguments, max_depth=32, max_nodes=256) for k in (kernels, reference))
    pairs = (
        (ours.accepted_nodes, theirs.accepted_nodes),
        (ours.num_accepted, theirs.num_accepted),
        (ours.own_token_ids, theirs.own_token_ids),
        (ours.is_bonus, theirs.is_bonus),
    )
    yield Outcome("tree walk", "1 to 256 nodes", float(sum((a != b).sum() for a, b in pairs)), 0.0)
