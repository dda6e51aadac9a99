"""The packed forward over the paged kernels: one transfer a step, padded and replayed where it is a decode step.

    rows of all sequences ──▶ decode step? ── no ──▶ tensors of its own size, eagerly
                                  └─ yes ─▶ padded to a bucket (buckets.py), replayed (step_graphs.py)

In a bucket every row goes through the head, padding rows too, and the wanted ones are picked afterwards; so the caller
gets tensors of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from specgrove.runtime.attention import PackedStep
from specgrove.runtime.buckets import bucket_of
from specgrove.runtime.decoder import StateReader
from specgrove.runtime.kv_cache import KVCache
from specgrove.runtime.paged_rows import PagedAttention, PagedRows
from specgrove.runtime.state_tap import RewriteStates
from specgrove.runtime.step_graphs import StepGraphs, Tensors
from specgrove_kernels.kv_write import NO_SLOT
from specgrove_kernels.paged_batch import BatchShape, PagedBatch, SequenceInFlight, batch_arrays, shape_of
from specgrove_kernels.staging import stage

if TYPE_CHECKING:
    from specgrove.runtime.forward import SequenceRows
    from specgrove.runtime.loading import LoadedModel


class PagedForward:
    """Runs rows that are in the cache's books already through one model. One thread at a time."""

    def __init__(self, loaded: LoadedModel, cache: KVCache, paged: PagedAttention) -> None:
        self._loaded = loaded
        self._cache = cache
        self._paged = paged
        self._device = loaded.device
        self._graphs = None if paged.new_capture is None else StepGraphs(paged.new_capture(), loaded.device)
        self._every_row: dict[int, torch.Tensor] = {}  # int64 [N] = 0..N-1 by N

    @property
    def num_recorded(self) -> int:
        """Buckets that are replayed."""
        return 0 if self._graphs is None else self._graphs.num_recorded

    def run(
        self,
        batch: Sequence[SequenceRows],
        before_head: RewriteStates | None = None,
        tap: StateReader | None = None,
        layers: Sequence[int] = (),
    ) -> Tensors:
        """Logits [W, K * V] of the rows that want them; with `tap` also their states [W, H] by layer, then the final
        ones."""
        with self._on_device():
            if self._cache.moves is not None:
                self._cache.moves.flush()
            sequences = [
                SequenceInFlight(
                    rows.seq.block_table,
                    rows.seq.cached_len,
                    rows.seq.ancestors,
                    rows.seq.row_positions,
                    len(rows.token_ids),
                )
                for rows in batch
            ]
            shape = shape_of(sequences, self._paged.heads_per_kv_head)
            wanted = [row for row, wants in enumerate(w for rows in batch for w in rows.wants_logits) if wants]
            bucket = bucket_of(shape) if self._is_recordable(shape, len(wanted), before_head) else None
            if bucket is not None:
                return self._run_in(bucket, batch, sequences, wanted, tap, layers)
            inputs = stage(self._arrays(batch, sequences, shape, wanted, is_padded=False), self._device)
            return self._compute(inputs, inputs[3], shape, before_head, tap, layers, is_padded=False)

    def _is_recordable(self, shape: BatchShape, num_wanted: int, before_head: RewriteStates | None) -> bool:
        """Decode steps ask about most of their rows, prefill about few. What changes states may be anything."""
        return self._graphs is not None and before_head is None and 2 * num_wanted >= shape.rows

    def _run_in(
        self,
        bucket: BatchShape,
        batch: Sequence[SequenceRows],
        sequences: Sequence[SequenceInFlight],
        wanted: Sequence[int],
        tap: StateReader | None,
        layers: Sequence[int],
    ) -> Tensors:
        assert self._graphs is not None
        if bucket.rows not in self._every_row:
            self._every_row[bucket.rows] = torch.arange(bucket.rows, device=self._device)
        every_row = self._every_row[bucket.rows]

        def work(inputs: Tensors) -> Tensors:
            return self._compute(inputs, every_row, bucket, None, tap, layers, is_padded=True)

        arrays = self._arrays(batch, sequences, bucket, wanted, is_padded=True)
        key = (bucket, None if tap is None else tuple(layers))
        outputs = self._graphs.run(key, arrays, work)
        if wanted[-1] == len(wanted) - 1:
            return tuple(output[: len(wanted)].clone() for output in outputs)
        (index,) = stage([np.array(wanted, dtype=np.int64)], self._device)
        return tuple(output.index_select(0, index) for output in outputs)

    def _arrays(
        self,
        batch: Sequence[SequenceRows],
        sequences: Sequence[SequenceInFlight],
        shape: BatchShape,
        wanted: Sequence[int],
        *,
        is_padded: bool,
    ) -> list[np.ndarray]:
        """Token ids [1, N], positions [1, N], slots [N], wanted rows, then the batch's tables."""
        token_ids = np.zeros((1, shape.rows), dtype=np.int64)
        positions = np.zeros((1, shape.rows), dtype=np.int64)
        slots = np.full(shape.rows, NO_SLOT, dtype=np.int64)
        first = 0
        for rows, seq in zip(batch, sequences, strict=True):
            last = first + len(rows.token_ids)
            token_ids[0, first:last] = rows.token_ids
            positions[0, first:last] = rows.positions
            slots[first:last] = seq.slots(self._cache.block_size)
            first = last
        picked = np.array([] if is_padded else wanted, dtype=np.int64)
        tables = batch_arrays(sequences, shape, self._cache.block_size, is_padded=is_padded)
        return [token_ids, positions, slots, picked, *tables]

    def _compute(
        self,
        inputs: Tensors,
        wanted: torch.Tensor,  # int64 [W]
        shape: BatchShape,
        before_head: RewriteStates | None,
        tap: StateReader | None,
        layers: Sequence[int],
        *,
        is_padded: bool,
    ) -> Tensors:
        token_ids, positions, slots, _, *tables = inputs
        max_keys = shape.blocks * self._cache.block_size
        batch = PagedBatch.of(tables, shape.rows_per_tile, self._cache.block_size, max_keys, is_padded=is_padded)
        step = PackedStep(self._cache, (), PagedRows(self._paged.kernels, batch, slots))
        if tap is None:
            return (self._loaded.logits(token_ids, positions, wanted, step, before_head),)
        with tap.reading(layers, wanted) as parts:
            logits = self._loaded.logits(token_ids, positions, wanted, step, before_head)
        return (logits, *parts)

    def _on_device(self) -> AbstractContextManager[object]:
        # Triton launches on the current device.
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()
