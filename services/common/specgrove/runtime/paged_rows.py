"""The packed rows of one forward as the paged kernels want them: one table for all sequences, attention in one launch.

host: sequences ──pack──▶ block tables, lengths, ancestor words, slots ──one copy──▶ device
each layer: write_kv (rows' keys and values to their slots) ──▶ paged_tree_attention (all rows at once)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from specgrove.runtime.step_graphs import Capture
from specgrove_kernels.backend import KernelSet
from specgrove_kernels.paged_batch import PagedBatch


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """That a model attends through the paged kernels, and how."""

    kernels: KernelSet
    heads_per_kv_head: int
    new_capture: Callable[[], Capture] | None = None  # what records decode steps; None runs every step eagerly


@dataclass(frozen=True, slots=True)
class PagedRows:
    """What one forward's layers share."""

    kernels: KernelSet
    batch: PagedBatch
    slots: torch.Tensor  # int64 [N], where the rows' keys and values go; `NO_SLOT` for rows that pad a bucket

    def attend(
        self,
        query: torch.Tensor,  # [N, H, D]
        key: torch.Tensor,  # [N, H_kv, D]
        value: torch.Tensor,  # [N, H_kv, D]
        storage: torch.Tensor,  # [2, slots, H_kv, D], one layer of the cache
        scaling: float,
    ) -> torch.Tensor:  # [N, H, D]
        """Write the rows' keys and values, then let every row see its prefix, its ancestors and itself."""
        self.kernels.write_kv(key, value, storage, self.slots)
        return self.kernels.paged_tree_attention(query, storage, self.batch, scaling=scaling)
