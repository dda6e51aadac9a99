"""Few rows of int8 models on CPUs: all layers in one compiled call, for a torch operator costs more than it does there.

    token ids, positions ─┐
    slots, key lists      ├─▶ run_layers ──▶ states [K, W, H] ──▶ (feature maps) ──▶ read_head ──▶ logits [W, K * V]
    addresses of weights ─┘

The weights are those of the models' `Int8Linear`s, laid out a second time (`Int8Linear.few_rows`): fbgemm's packing,
which serves many rows, cannot be read by anybody else. Cache and channel order are the torch path's, so that a sequence
goes from one to the other from forward to forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from specgrove.runtime.attention import PackedStep
from specgrove.runtime.attention_choice import ROPE_BY_LENGTH
from specgrove.runtime.int8_linear import Int8Linear, is_int8_supported
from specgrove.runtime.lean_step import HeadLayout
from specgrove.runtime.packed_linear import PackedColumns
from specgrove_kernels.cpu import compiled

# Rows times models times torch's threads, of which the compiled way uses one. Above it torch's operators are worth
# their while (README).
MOST_ROWS = 64
LEAST_ROWS = 8  # with however many threads
_LEAST_TURNS = 256

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ModelParts:
    """One model's small weights as the written-out decoder keeps them, by layer."""

    attention_norms: Sequence[torch.Tensor]  # float32 [H], times the root of H
    mlp_norms: Sequence[torch.Tensor]
    final_norm: torch.Tensor


@dataclass(slots=True, eq=False)
class FewRows:
    """The compiled way through models of one shape. Made by `of`."""

    _models: tuple[Any, ...]
    _layers: Ints  # [K, L, LayerAddress.COUNT]
    _embeddings_and_norms: Ints  # [K, ModelAddress.COUNT]
    _sizes: Ints
    _constants: npt.NDArray[np.float32]
    _rotary: nn.Module
    _kept: list[object]  # whatever lies at these addresses
    _turns: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 2, 0), dtype=np.float32))
    _heads: tuple[Any, ...] = ()  # empty until they are asked for
    _head_addresses: Ints | None = None  # None where a head is not of int8

    @classmethod
    def of(
        cls, models: Sequence[Any], parts: Sequence[ModelParts], heads: HeadLayout, rotary: nn.Module
    ) -> FewRows | None:
        """The compiled way through `models`; None where their weights are not of int8 or not on a CPU."""
        config = models[0].config
        if not (heads.is_paired and is_int8_supported() and compiled.is_available()):
            return None
        if (config.rope_parameters or {}).get("rope_type") in ROPE_BY_LENGTH:
            return None
        products = [[found for layer in model.model.layers if (found := _products(layer))] for model in models]
        embeddings = [model.get_input_embeddings().weight.detach() for model in models]
        if any(len(layers) < config.num_hidden_layers for layers in products) or not all(map(_is_plain, embeddings)):
            return None
        from specgrove_kernels.cpu import int8_forward, int8_rows

        if not int8_rows.is_supported():
            return None
        int8_forward.prepare()
        layers = [_layer_addresses(*pair) for pair in zip(parts, products, strict=True)]
        tables = [
            (weight.data_ptr(), of_model.final_norm.data_ptr())
            for weight, of_model in zip(embeddings, parts, strict=True)
        ]
        hidden = config.hidden_size
        sizes = (hidden, heads.num_heads, heads.num_kv_heads, heads.head_dim, config.intermediate_size)
        epsilon = models[0].model.norm.variance_epsilon
        return cls(
            tuple(models),
            np.array(layers),
            np.array(tables),
            np.array([*sizes, len(embeddings[0])]),
            np.array([heads.scaling, hidden * epsilon], dtype=np.float32),
            rotary,
            [products, embeddings, list(parts)],
        )

    @property
    def _hidden_size(self) -> int:
        return int(self._sizes[0])

    def takes(self, num_rows: int, step: PackedStep) -> bool:
        """Whether a forward of `num_rows` rows goes this way."""
        most = max(MOST_ROWS // torch.get_num_threads(), LEAST_ROWS)
        return num_rows * len(self._models) <= most and step.paged is None

    def states(
        self,
        token_ids: torch.Tensor,  # int64 [1, N]
        positions: torch.Tensor,  # int64 [1, N]
        wanted: torch.Tensor,  # int64 [W], ascending
        step: PackedStep,
    ) -> torch.Tensor:  # float32 [K, W, H]
        """States of the wanted rows after the final norm; keys and values of all rows go to the cache."""
        from specgrove_kernels.cpu.int8_forward import run_layers
        from specgrove_kernels.cpu.row_attention import KeyLists, SequenceKeys

        final = np.empty((len(self._models), wanted.numel(), self._hidden_size), dtype=np.float32)
        rows = np.empty((3, token_ids.numel()), dtype=np.int64)
        rows[0], rows[1] = token_ids.numpy(), positions.numpy()
        for part in step.parts:
            slots = part.write_slots
            rows[2, part.start : part.stop] = (
                np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots.numpy()
            )
        if rows[0].min() < 0 or rows[0].max() >= self._sizes[5]:  # nobody else would notice
            raise IndexError(f"token ids must be in [0, {self._sizes[5]})")
        turns = self._turns_up_to(int(rows[1].max()))
        keys = KeyLists.of(
            SequenceKeys(
                part.start,
                part.stop,
                part.read_slots if isinstance(part.read_slots, slice) else part.read_slots.numpy(),
                None if part.mask.visible is None else part.mask.visible.numpy(),
            )
            for part in step.parts
        )
        run_layers(
            self._layers,
            self._embeddings_and_norms,
            self._sizes,
            self._constants,
            rows,
            turns,
            step.cache.storage.numpy(),
            keys.sequences,
            keys.slots,
            keys.visible,
            wanted.numpy(),
            final,
        )
        return torch.from_numpy(final)

    def logits(self, final: torch.Tensor) -> torch.Tensor:  # [K, W, H] -> float32 [W, K * V]
        """The states through the models' heads as they are now."""
        from specgrove_kernels.cpu.int8_forward import read_head

        if not self._heads:
            self._heads = tuple(model.get_output_embeddings() for model in self._models)
            self._head_addresses = _head_addresses(self._heads)
        if self._head_addresses is None:
            return torch.cat([head(states) for head, states in zip(self._heads, final, strict=True)], dim=-1).float()
        width = len(self._heads) * self._heads[0].out_features
        logits = np.empty((final.shape[1], width), dtype=np.float32)
        read_head(self._head_addresses, final.contiguous().numpy(), logits)
        return torch.from_numpy(logits)

    def forget_heads(self) -> None:
        """Heads were replaced."""
        self._heads = ()

    def _turns_up_to(self, position: int) -> npt.NDArray[np.float32]:  # [P, 2, D / 2]
        """Cosines and sines of all positions so far, made by the model's own code."""
        if position >= len(self._turns):
            count = max(_LEAST_TURNS, 1 << position.bit_length())
            like = torch.empty(1, dtype=torch.float32)
            cos, sin = self._rotary(like, position_ids=torch.arange(count)[None])
            half = cos.shape[-1] // 2
            self._turns = torch.stack([cos[0, :, :half], sin[0, :, :half]], dim=1).float().contiguous().numpy()
        return self._turns


def _is_plain(weight: torch.Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and weight.is_contiguous()


def _products(layer: Any) -> tuple[Int8Linear, ...] | None:
    """A layer's four products in the order of `LayerAddress`; None where one is not of int8."""
    projections, gate = layer.self_attn.q_proj, layer.mlp.gate_proj
    if not isinstance(projections, PackedColumns) or not isinstance(gate, PackedColumns):
        return None
    products = (projections.all_columns, layer.self_attn.o_proj, gate.all_columns, layer.mlp.down_proj)
    return products if all(isinstance(product, Int8Linear) for product in products) else None  # type: ignore[return-value]


def _layer_addresses(parts: ModelParts, products: Sequence[tuple[Int8Linear, ...]]) -> list[tuple[int, ...]]:
    """One model's rows of the table: its layers in the order of `LayerAddress`."""
    return [
        (attention_norm.data_ptr(), mlp_norm.data_ptr(), *(a for one in layer for a in one.few_rows.addresses))
        for attention_norm, mlp_norm, layer in zip(parts.attention_norms, parts.mlp_norms, products, strict=True)
    ]


def _head_addresses(heads: Sequence[Any]) -> Ints | None:
    if not all(isinstance(head, Int8Linear) for head in heads):
        return None
    return np.array([head.few_rows.addresses for head in heads])
