"""One forward of few rows on a CPU: a layer is four of torch's matrix products and four compiled calls between them.

    normed ─▶ projections ─▶ attend ─▶ output ─▶ add ─▶ gate and up ─▶ gate ─▶ down ─▶ add ─▶ normed of the next layer

The counterpart of `lean_step.LeanStep` and the operators around it, of which each would cost as much to call as it
takes (README). Importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from specgrove.runtime.attention import PackedPart, PackedStep
from specgrove.runtime.lean_step import HeadLayout
from specgrove_kernels.cpu import layer_operators
from specgrove_kernels.cpu.row_attention import KeyLists, SequenceKeys

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class CompiledLayers:
    """What a decoder's compiled steps have in common."""

    norms: Array  # float32 [2 * layers + 1, K, H], weights in the order in which a forward comes to them
    epsilon: float
    mlp_width: int

    @classmethod
    def of(cls, models: Sequence[Any]) -> CompiledLayers | None:
        """For Llama-shaped `models` of one shape; None where they are not float32 on a CPU."""
        if any(one.dtype != torch.float32 or one.device.type != "cpu" for one in models[0].parameters()):
            return None
        layer_operators.prepare()
        norms = zip(*(_norms_in_order(model) for model in models), strict=True)
        weights = torch.stack([torch.stack([norm.weight.detach() for norm in one]) for one in norms])
        return cls(weights.numpy(), float(models[0].model.norm.variance_epsilon), models[0].config.intermediate_size)

    def fits(self, step: PackedStep) -> bool:
        """Whether the compiled operators are the faster ones for `step`."""
        return step.paged is None and all(part.stop - part.start <= _most_rows() for part in step.parts)

    def plan(
        self,
        step: PackedStep,
        heads: HeadLayout,
        states: torch.Tensor,  # float32 [K, N, H], the embedded tokens, written to
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> CompiledStep:
        """`cos` and `sin` are float [1, N, D], both halves alike, as `transformers` makes them."""
        num_models, num_rows, _ = states.shape
        half = heads.head_dim // 2
        turns = torch.stack([cos[0, :, :half], sin[0, :, :half]], dim=-1)
        return CompiledStep(
            self,
            heads.scaling,
            _Shared.of(states),
            _Shared.of(torch.empty_like(states)),
            _Shared.of(states.new_empty(num_models, num_rows, heads.num_heads * heads.head_dim)),
            _Shared.of(states.new_empty(num_models, num_rows, self.mlp_width)),
            turns.float().flatten(1).numpy(),
            step.cache.storage.numpy(),
            np.concatenate([_slots(part.write_slots) for part in step.parts]),
            KeyLists.of(map(_keys, step.parts)),
            np.empty((num_models, num_rows, heads.num_heads, heads.head_dim), dtype=np.float32),
        )


@dataclass(frozen=True, slots=True)
class _Shared:
    """A buffer as torch and as NumPy see it."""

    tensor: torch.Tensor
    array: Array

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Shared:
        return cls(tensor, tensor.numpy())


@dataclass(frozen=True, slots=True)
class CompiledStep:
    """One forward's states, buffers and key lists. Results are buffers: the next call of its kind writes to them."""

    layers: CompiledLayers
    scaling: float
    states: _Shared  # float32 [K, N, H], which the layers add to
    normed: _Shared  # float32 [K, N, H]
    mixed: _Shared  # float32 [K, N, H * D]
    gated: _Shared  # float32 [K, N, I]
    turns: Array  # float32 [N, D]: cosine and sine by pair of channels
    storage: Array  # the cache's, float32 [layers, 2, slots, K * H_kv, D]
    write_slots: Array  # int64 [N]
    keys: KeyLists
    queries: Array  # float32 [K, N, H, D]

    def enter(self) -> torch.Tensor:  # [K, N, H]
        """The states after the first norm."""
        layer_operators.norm(self.states.array, self.layers.norms, 0, self.layers.epsilon, self.normed.array)
        return self.normed.tensor

    def attend(self, layer: int, columns: torch.Tensor) -> torch.Tensor:  # [K, N, (H + 2 H_kv) * D] -> [K, N, H * D]
        """Write the rows' keys and values, then let every row see its prefix, its ancestors and itself."""
        layer_operators.attend(
            layer,
            columns.numpy(),
            self.turns,
            self.scaling,
            self.storage,
            self.write_slots,
            self.keys.sequences,
            self.keys.slots,
            self.keys.visible,
            self.queries,
            self.mixed.array,
        )
        return self.mixed.tensor

    def add(self, addend: torch.Tensor, norm: int) -> torch.Tensor:  # [K, N, H] -> [K, N, H]
        """The states after `addend` was added to them and norm number `norm` was taken."""
        layer_operators.add_and_norm(
            self.states.array, addend.numpy(), self.layers.norms, norm, self.layers.epsilon, self.normed.array
        )
        return self.normed.tensor

    def gate(self, gate_and_up: torch.Tensor) -> torch.Tensor:  # [K, N, 2 I] -> [K, N, I]
        """silu(gate) * up."""
        layer_operators.gate(gate_and_up.numpy(), self.gated.array)
        return self.gated.tensor

    def narrowed(self, rows: torch.Tensor) -> CompiledStep:
        """The same with `rows` (int64 [W]) alone, for what comes after the last attention."""
        states = self.states.tensor.index_select(1, rows)
        return replace(
            self,
            states=_Shared.of(states),
            normed=_Shared.of(torch.empty_like(states)),
            mixed=_Shared.of(self.mixed.tensor.index_select(1, rows)),
            gated=_Shared.of(states.new_empty(states.shape[0], len(rows), self.gated.array.shape[2])),
        )


def _most_rows() -> int:
    """Above this many rows of one sequence torch's batched products, on all threads, are the faster attention."""
    return 32 if torch.get_num_threads() == 1 else 16  # README


def _keys(part: PackedPart) -> SequenceKeys:
    visible = part.mask.visible
    slots = part.read_slots
    return SequenceKeys(
        part.start,
        part.stop,
        slots if isinstance(slots, slice) else slots.numpy(),
        None if visible is None else visible.numpy(),
    )


def _slots(slots: torch.Tensor | slice) -> Array:
    return np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots.numpy()


def _norms_in_order(model: Any) -> Iterator[Any]:
    for layer in model.model.layers:
        yield layer.input_layernorm
        yield layer.post_attention_layernorm
    yield model.model.norm
