"""One set of operations with two implementations: plain torch on CPUs, Triton on NVIDIA GPUs.

This is the one place that imports the Triton modules, and only when asked to: a CPU service never loads Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import torch

from specgrove_kernels.paged_batch import PagedBatch
from specgrove_kernels.token_choice import SHARED_STREAM
from specgrove_kernels.tree_walk import Walks


class KernelsUnavailable(RuntimeError):
    """Triton is not installed; `pip install 'specgrove[gpu]'` brings it, or take `reference_kernels()`."""


class AttendPaged(Protocol):
    """As `paged_attention.paged_tree_attention`."""

    def __call__(
        self,
        query: torch.Tensor,
        storage: torch.Tensor,
        batch: PagedBatch,
        *,
        scaling: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor: ...


class WriteKV(Protocol):
    """As `kv_write.write_kv`."""

    def __call__(self, key: torch.Tensor, value: torch.Tensor, storage: torch.Tensor, slots: torch.Tensor) -> None: ...


class CompactKV(Protocol):
    """As `kv_compaction.compact_kv`."""

    def __call__(
        self,
        storage: torch.Tensor,
        source_slots: torch.Tensor,
        target_slots: torch.Tensor,
        move_starts: torch.Tensor,
    ) -> None: ...


class ChooseTokens(Protocol):
    """As `token_choice.choose_tokens`."""

    def __call__(
        self,
        logits: torch.Tensor,
        temperatures: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
        *,
        stream: int = SHARED_STREAM,
    ) -> torch.Tensor: ...


class WalkTrees(Protocol):
    """As `tree_walk.walk_trees`."""

    def __call__(
        self,
        choices: torch.Tensor,
        token_ids: torch.Tensor,
        parents: torch.Tensor,
        tree_starts: torch.Tensor,
        *,
        max_depth: int,
        max_nodes: int,
    ) -> Walks: ...


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The operations of a step that have kernels."""

    paged_tree_attention: AttendPaged
    write_kv: WriteKV
    compact_kv: CompactKV
    choose_tokens: ChooseTokens
    walk_trees: WalkTrees


def kernels_for(device: torch.device) -> KernelSet:
    """Triton kernels on an NVIDIA GPU where Triton is installed, the references everywhere else."""
    return triton_kernels() if device.type == "cuda" and has_triton() else reference_kernels()


def has_triton() -> bool:
    """Whether `triton_kernels()` can be had. Does not import Triton."""
    return find_spec("triton") is not None


def is_interpreted() -> bool:
    """Whether this process runs Triton kernels in the interpreter (`TRITON_INTERPRET=1`), where a CPU will do."""
    if not has_triton():
        return False
    from triton import knobs

    return bool(knobs.runtime.interpret)


def reference_kernels() -> KernelSet:
    """The operations in plain torch, on any device."""
    from specgrove_kernels import kv_compaction, kv_write, paged_attention, token_choice, tree_walk

    return KernelSet(
        paged_attention.paged_tree_attention,
        kv_write.write_kv,
        kv_compaction.compact_kv,
        token_choice.choose_tokens,
        tree_walk.walk_trees,
    )


def triton_kernels() -> KernelSet:
    """The operations in Triton: for tensors on an NVIDIA GPU, or anywhere under `TRITON_INTERPRET=1`."""
    if not has_triton():
        raise KernelsUnavailable(KernelsUnavailable.__doc__)
    from specgrove_kernels import (
        kv_compaction_triton,
        kv_write_triton,
        paged_attention_triton,
        token_choice_triton,
        tree_walk_triton,
    )

    return KernelSet(
        paged_attention_triton.paged_tree_attention,
        kv_write_triton.write_kv,
        kv_compaction_triton.compact_kv,
        token_choice_triton.choose_tokens,
        tree_walk_triton.walk_trees,
    )
