"""Tiny models that attend through the paged kernels, and a recorder of steps for machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from specgrove.runtime.loading import LoadedModel
from specgrove.runtime.paged_rows import PagedAttention
from specgrove.runtime.step_graphs import Recorded, Tensors
from specgrove_kernels.backend import KernelSet, reference_kernels


@dataclass(slots=True)
class ReplayingCapture:
    """Records by keeping the work: a replay runs it again, and its outputs must lie where the first ones do.

    As with a CUDA graph, outputs hold nothing before the first replay, and inputs are read where they lay at recording.
    """

    max_records: int = 10**6  # one more raises, as work that cannot be recorded does
    num_recorded: int = 0
    num_replayed: int = 0
    num_forgotten: int = 0

    def __call__(self, work: Callable[[], Tensors]) -> Recorded:
        if self.num_recorded >= self.max_records:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.num_recorded += 1
        outputs = work()
        for output in outputs:
            output.fill_(float("nan"))

        def replay() -> None:
            self.num_replayed += 1
            for output, value in zip(outputs, work(), strict=True):
                assert output.data_ptr() == value.data_ptr()

        return Recorded(outputs, replay, self._forget)

    def _forget(self) -> None:
        self.num_forgotten += 1


def paged(
    loaded: LoadedModel, *, kernels: KernelSet | None = None, capture: ReplayingCapture | None = None
) -> LoadedModel:
    """`loaded` with its attention through `kernels` (the references), decode steps recorded by `capture` if given."""
    config = loaded.model.config
    num_kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    attention = PagedAttention(
        kernels or reference_kernels(),
        config.num_attention_heads // num_kv_heads,
        None if capture is None else lambda: capture,
    )
    return replace(loaded, paged=attention)
