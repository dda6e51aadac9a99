"""What drafters want to know of the target's thoughts: its states at the last committed row, kept on demand.

    Hello: layers 10, 20 ──▶ granted(drafter, layers)   if this target has them, else none
    step                 ──▶ run(batch, layers)         the forward, and the states of the rows that choose tokens
    commit               ──▶ outputs.features_at(node)  of the node that chose the last committed token
    Commit / Open        ──▶ features.select(layers)    what one drafter asked for, as bytes

Nobody asks: `run` is a plain forward.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specgrove.errors import ModelLoadError
from specgrove.features import MAX_FEATURE_BYTES, FeatureLayout
from specgrove.runtime.decoder import StateReader
from specgrove.runtime.features import encode_parts
from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.loading import LoadedModel
from specgrove_verifier.metrics import EngineMetrics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptFeatures:
    """The states that gave the last token of a base, ready to be sent."""

    layers: Mapping[int, bytes]
    final: bytes

    def select(self, layers: Sequence[int]) -> bytes:
        """The parts of `layers` in their order, then the final one; empty for none, and when one was not kept."""
        if not layers or any(layer not in self.layers for layer in layers):
            return b""
        return b"".join([*(self.layers[layer] for layer in layers), self.final])


@dataclass(frozen=True, slots=True)
class TargetOutputs:
    """What the target says of some rows: logits, and the states of `layers` as they travel if anybody wants any."""

    logits: torch.Tensor  # float32 [W, V]
    layers: tuple[int, ...] = ()
    states: np.ndarray | None = None  # float16 [W, P, H]

    def rows(self, first: int, last: int) -> TargetOutputs:
        states = None if self.states is None else self.states[first:last]
        return TargetOutputs(self.logits[first:last], self.layers, states)

    def without(self, rows: Collection[int]) -> TargetOutputs:
        """All rows but these."""
        kept = [row for row in range(len(self.logits)) if row not in rows]
        return TargetOutputs(self.logits[kept], self.layers, None if self.states is None else self.states[kept])

    def features_at(self, row: int) -> KeptFeatures | None:
        """The features of one row; None when nobody wanted any."""
        if self.states is None:
            return None
        parts = [part.tobytes() for part in self.states[row]]
        return KeptFeatures(dict(zip(self.layers, parts[:-1], strict=True)), parts[-1])


class FeatureSource:
    """Lets the target run, and reads its states in passing where a drafter asked for them."""

    def __init__(self, loaded: LoadedModel, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._num_layers = loaded.kv_shape.num_layers
        self._hidden_size = loaded.hidden_size
        self._tap: StateReader | None = None
        self._obstacle = ""
        try:
            self._tap = loaded.state_tap()
        except ModelLoadError as error:
            self._obstacle = error.message

    def granted(self, drafter_id: str, layers: Sequence[int]) -> tuple[int, ...]:
        """`layers` if this target can serve them; else none, with a warning: the drafter does without."""
        problem = self._obstacle
        if any(not 1 <= layer < self._num_layers for layer in layers):
            problem = f"the inner layers of this target are 1 to {self._num_layers - 1}"
        elif len(set(layers)) < len(layers):
            problem = "a layer is named twice"  # with every commit it would be sent as often
        elif (size := FeatureLayout(tuple(layers), self._hidden_size).num_bytes) > MAX_FEATURE_BYTES:
            problem = f"they take {size} bytes, the limit is {MAX_FEATURE_BYTES}"
        if not layers or not problem:
            return tuple(layers)
        self._metrics.record_refused_features()
        _log.warning("a drafter gets no features", extra={"drafter_id": drafter_id, "reason": problem})
        return ()

    def run(self, forward: PackedForward, batch: Sequence[SequenceRows], layers: Collection[int]) -> TargetOutputs:
        """One forward; states are read only if `layers` names some."""
        if not layers or self._tap is None:
            return TargetOutputs(forward.run(batch))
        ordered = tuple(sorted(layers))
        outputs = forward.run_and_read(batch, self._tap, ordered)
        self._metrics.record_feature_step()
        # All rows at once: which of them will have chosen the last token is not known before the walk.
        return TargetOutputs(outputs.logits, ordered, encode_parts(outputs.states))
