"""Decode steps recorded once for each bucket and replayed: a step then costs one launch instead of hundreds.

    first step of a bucket    runs eagerly, on the bucket's own input bytes: whatever compiles lazily is compiled
    second                    runs eagerly too, and is recorded for the next ones
    later ones                copy their inputs over the bucket's bytes, replay, read the bucket's outputs

Recording takes a moment in mid-service, so buckets are few, and one that is seen once is not recorded. Recordings never
run at the same time: they share one pool of memory for what they compute on the way, and one place for their outputs,
which callers copy before the next step. So memory grows with the largest bucket, not with their number.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from specgrove_kernels.staging import num_bytes_of, stage

_log = logging.getLogger(__name__)
MAX_GRAPHS = 64

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Work that can be run again: `replay` computes `outputs` anew, in place, from whatever the inputs then hold."""

    outputs: Tensors
    replay: Callable[[], None]
    forget: Callable[[], None]  # gives its memory back; `replay` is not called afterwards


class Capture(Protocol):
    """Records work on a device without running it."""

    def __call__(self, work: Callable[[], Tensors]) -> Recorded:
        """Raises `RuntimeError` when `work` does something that cannot be recorded."""
        ...


class CudaCapture:
    """Records CUDA graphs. All of one instance share a memory pool; one thread at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # torch has no public name for its type

    def __call__(self, work: Callable[[], Tensors]) -> Recorded:
        """See `Capture`."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._device)
        try:
            # Other threads may use the device meanwhile: only this one's calls are of the recording.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                outputs = work()
        finally:
            # A recording that fails leaves its own stream behind (torch 2.13, `graph.__exit__`).
            torch.cuda.set_stream(stream)
        return Recorded(outputs, graph.replay, graph.reset)


class _OutputPlace:
    """Memory for the outputs of any one recording. Grows by doubling: what older recordings hold of it adds up to no
    more than the largest."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def for_outputs(self, outputs: Tensors) -> Tensors:
        """Room for tensors like `outputs`."""
        views = []
        for number, output in enumerate(outputs):
            buffer = self._buffers.get((number, output.dtype))
            if buffer is None or buffer.numel() < output.numel():
                size = max(output.numel(), 0 if buffer is None else 2 * buffer.numel())
                buffer = torch.empty(size, dtype=output.dtype, device=self._device)
                self._buffers[number, output.dtype] = buffer
            views.append(buffer[: output.numel()].view(output.shape))
        return tuple(views)


@dataclass(slots=True)
class _Bucket:
    buffer: torch.Tensor  # uint8, on the device
    recorded: Recorded | None = None


class StepGraphs:
    """Runs work by bucket: eagerly twice, replayed from the third time on. One thread at a time.

    Keeps the `max_graphs` buckets used last.
    """

    def __init__(self, capture: Capture, device: torch.device, max_graphs: int = MAX_GRAPHS) -> None:
        self._capture = capture
        self._device = device
        self._max_graphs = max_graphs
        self._outputs = _OutputPlace(device)
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self.is_off = False  # recording failed once; everything runs eagerly since

    @property
    def num_recorded(self) -> int:
        return sum(bucket.recorded is not None for bucket in self._buckets.values())

    def run(self, key: Hashable, arrays: Sequence[np.ndarray], work: Callable[[Tensors], Tensors]) -> Tensors:
        """`work` on `arrays`, staged. Arrays and work of one `key` differ in the arrays' values only.

        The outputs are valid until the next call.
        """
        bucket = self._buckets.get(key)
        is_new = bucket is None
        if bucket is None:
            self._make_room()
            bucket = _Bucket(torch.empty(num_bytes_of(arrays), dtype=torch.uint8, device=self._device))
            self._buckets[key] = bucket
        self._buckets.move_to_end(key)
        inputs = stage(arrays, self._device, bucket.buffer)
        if bucket.recorded is None:
            outputs = work(inputs)
            if not is_new and not self.is_off:
                self._record(bucket, key, work, inputs, outputs)
            return outputs
        bucket.recorded.replay()
        return bucket.recorded.outputs

    def _record(
        self, bucket: _Bucket, key: Hashable, work: Callable[[Tensors], Tensors], inputs: Tensors, outputs: Tensors
    ) -> None:
        """Record `work`, which has just run; its next step will be replayed."""
        place = self._outputs.for_outputs(outputs)

        def into_place() -> Tensors:
            for room, output in zip(place, work(inputs), strict=True):
                room.copy_(output)
            return place

        try:
            bucket.recorded = self._capture(into_place)
        except RuntimeError as error:
            self.is_off = True
            _log.warning("decode steps cannot be recorded as CUDA graphs and run eagerly from now on: %s", error)
        else:
            _log.debug("recorded a decode step", extra={"bucket": str(key), "recorded": self.num_recorded})

    def _make_room(self) -> None:
        while len(self._buckets) >= self._max_graphs:
            _, oldest = self._buckets.popitem(last=False)
            if oldest.recorded is not None:
                oldest.recorded.forget()
