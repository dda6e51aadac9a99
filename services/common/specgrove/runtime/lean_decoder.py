"""A decoder that runs Llama-shaped models in as few operators as they need: a layer is 4 products and 15 small ones.

`transformers` runs the same layer in about 60 operators and a dozen Python frames, which on a CPU costs more time than
the matrix products of a 135M model (README). The weights are those of the loaded model; norms, rotation and attention
are written out here, and `probe.py` compares them with the model's own when it is loaded. Steps of few rows on CPUs
run through compiled operators instead of the small ones (`compiled_step.py`).

Several models of one shape run as one: their rows are a leading dimension, their heads lie side by side in one cache,
and everything but the matrix products happens once for all.

    tokens [N] ──▶ states [K, N, H] ──▶ layers: one attention over K * heads ──▶ logits [W, K * V]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from specgrove.runtime.attention import PackedStep
from specgrove.runtime.few_rows import FewRows, ModelParts
from specgrove.runtime.lean_products import Product, joint, pair_channels, paired_order, side_by_side
from specgrove.runtime.lean_step import HeadLayout, LeanStep
from specgrove.runtime.paged_step import PagedStep
from specgrove.runtime.state_tap import RewriteStates

if TYPE_CHECKING:
    from specgrove.runtime.compiled_step import CompiledLayers, CompiledStep

KNOWN_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2"})


@dataclass(frozen=True, slots=True)
class _Norm:
    """Root mean square normalisation, a weight for each model.

    x / sqrt(mean(x^2) + eps) * weight = x / hypot(|x|, sqrt(H eps)) * (sqrt(H) weight): four operators.
    """

    weight: torch.Tensor  # float32 [K, 1, H], times the root of H
    floor: torch.Tensor  # float32 [], the root of H * eps

    def __call__(self, states: torch.Tensor, scratch: _Scratch) -> torch.Tensor:  # the scratch's: it does not last
        if states.dtype != torch.float32:
            return self(states.float(), scratch).to(states.dtype)
        torch.linalg.vector_norm(states, dim=-1, keepdim=True, out=scratch.size)
        torch.hypot(scratch.size, self.floor, out=scratch.size)
        torch.div(states, scratch.size, out=scratch.normed)
        return scratch.normed.mul_(self.weight)


@dataclass(frozen=True, slots=True)
class _Scratch:
    """Where all norms of a step that have one shape leave what nobody needs for long."""

    size: torch.Tensor  # float32 [K, N, 1]
    normed: torch.Tensor  # float32 [K, N, H]

    @classmethod
    def like(cls, states: torch.Tensor) -> _Scratch:  # [K, N, H]
        normed = torch.empty_like(states, dtype=torch.float32)
        return cls(normed.new_empty(*states.shape[:2], 1), normed)


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: _Norm
    projections: Product  # to queries, keys and values side by side
    output: Product
    mlp_norm: _Norm
    gate_and_up: Product
    down: Product


class LeanDecoder:
    """One or more models of one shape, run as one."""

    def __init__(self, models: Sequence[Any], *, may_compile: bool = True) -> None:
        self.may_compile = may_compile  # whether its small operators on CPUs may be compiled ones
        self._models = tuple(models)
        first = models[0]
        config = first.config
        attention = first.model.layers[0].self_attn
        heads = HeadLayout(
            config.num_attention_heads, config.num_key_value_heads, attention.head_dim, attention.scaling
        )
        order = paired_order(heads)
        paired = [pair_channels(layer.self_attn, order) for model in models for layer in model.model.layers]
        self._heads = replace(heads, is_paired=all(paired))
        self._rotary: nn.Module = first.model.rotary_emb
        self._layers = [_layer(layers) for layers in zip(*(model.model.layers for model in models), strict=True)]
        self._final_norm = _norm([model.model.norm for model in models])
        self._compiled = _compiled_layers(models) if may_compile and self._heads.is_paired else None
        self._few_rows = self._for_few_rows() if may_compile else None
        self._kept_layers: dict[int, list[int]] = {}  # layer -> places in `_kept`; empty unless states are being read
        self._kept: list[torch.Tensor] = []

    @classmethod
    def of(cls, models: Sequence[Any], *, may_compile: bool = True) -> LeanDecoder | None:
        """A decoder over `models`, or None where it would have to know more than it does."""
        shapes = {_shape(model) for model in models}
        return cls(models, may_compile=may_compile) if len(shapes) == 1 and None not in shapes else None

    @property
    def num_models(self) -> int:
        return len(self._models)

    @property
    def has_compiled_operators(self) -> bool:
        """Whether steps of few rows run through them."""
        return self._compiled is not None

    def logits(
        self,
        token_ids: torch.Tensor,  # int64 [1, N]
        positions: torch.Tensor,  # int64 [1, N]
        wanted: torch.Tensor,  # int64 [W], packed rows
        step: PackedStep,
        before_head: RewriteStates | None = None,
    ) -> torch.Tensor:  # float32 [W, K * V]
        """See `decoder.Decoder`; with K models the states that `before_head` may change are [K, W, H]."""
        few = self._few_rows
        if few is not None and not self._kept_layers and few.takes(token_ids.shape[1], step):
            final = few.states(token_ids, positions, wanted, step)
            return few.logits(final if before_head is None else before_head(final))
        states = _by_model([F.embedding(token_ids[0], model.get_input_embeddings().weight) for model in self._models])
        cos, sin = self._rotary(states, position_ids=positions)
        if self._compiled is not None and self._compiled.fits(step):
            final = self._run_compiled(self._compiled.plan(step, self._heads, states, cos, sin), wanted)
        else:
            final = self._run_layers(states, _plan(step, self._heads, cos, sin), wanted)
        for place in self._kept_layers.get(0, ()):
            self._kept[place] = final[0]
        if before_head is not None:
            final = before_head(final)
        scores = [model.get_output_embeddings()(final[k]) for k, model in enumerate(self._models)]
        return (scores[0] if len(scores) == 1 else torch.cat(scores, dim=-1)).float()

    def _run_layers(
        self, states: torch.Tensor, lean: LeanStep | PagedStep, wanted: torch.Tensor
    ) -> torch.Tensor:  # [K, N, H] -> [K, W, H], normalised
        scratch, last = _Scratch.like(states), len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            # Below the last attention only the rows that somebody asks about are of use.
            rows = wanted if number == last and len(wanted) < states.shape[1] else None
            states, scratch = self._run_layer(number, layer, states, lean, scratch, rows)
            for place in self._kept_layers.get(number + 1, ()):
                self._kept[place] = states[0].clone() if number == last else states[0, wanted]
        return self._final_norm(states, scratch)

    def _run_compiled(self, step: CompiledStep, wanted: torch.Tensor) -> torch.Tensor:  # [K, W, H], normalised
        normed, last = step.enter(), len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            mixed = step.attend(number, layer.projections(normed))
            if number == last and len(wanted) < mixed.shape[1]:
                step = step.narrowed(wanted)
                mixed = step.mixed.tensor
            normed = step.add(layer.output(mixed), 2 * number + 1)
            normed = step.add(layer.down(step.gate(layer.gate_and_up(normed))), 2 * number + 2)
            for place in self._kept_layers.get(number + 1, ()):
                states = step.states.tensor[0]
                self._kept[place] = states.clone() if number == last else states[wanted]
        return normed

    def forget_heads(self) -> None:
        """Say that a model's head was replaced."""
        if self._few_rows is not None:
            self._few_rows.forget_heads()

    @contextmanager
    def reading(self, layers: Sequence[int], rows: torch.Tensor) -> Iterator[list[torch.Tensor]]:
        """As `StateTap.reading`; `rows` must be the rows that the forward inside wants logits of."""
        parts = self._kept = [rows] * (len(layers) + 1)
        for place, layer in enumerate([*layers, 0]):
            self._kept_layers.setdefault(layer, []).append(place)
        try:
            yield parts
        finally:
            self._kept_layers.clear()

    def _for_few_rows(self) -> FewRows | None:
        parts = [
            ModelParts(
                [layer.attention_norm.weight[model, 0] for layer in self._layers],
                [layer.mlp_norm.weight[model, 0] for layer in self._layers],
                self._final_norm.weight[model, 0],
            )
            for model in range(len(self._models))
        ]
        return FewRows.of(self._models, parts, self._heads, self._rotary)

    def _run_layer(
        self,
        number: int,
        layer: _Layer,
        states: torch.Tensor,  # [K, N, H]
        lean: LeanStep | PagedStep,
        scratch: _Scratch,
        rows: torch.Tensor | None,
    ) -> tuple[torch.Tensor, _Scratch]:  # [K, N or len(rows), H]
        mixed = lean.attend(number, layer.projections(layer.attention_norm(states, scratch)))
        if rows is not None:
            states, mixed = states[:, rows], mixed[:, rows]
            scratch = _Scratch.like(states)
        states = layer.output(mixed).add_(states)
        gate, up = layer.gate_and_up(layer.mlp_norm(states, scratch)).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up)).add_(states), scratch


def _plan(step: PackedStep, heads: HeadLayout, cos: torch.Tensor, sin: torch.Tensor) -> LeanStep | PagedStep:
    if step.paged is None:
        return LeanStep.plan(step, heads, cos, sin)
    return PagedStep.plan(step, step.paged, heads, cos, sin)


def _compiled_layers(models: Sequence[Any]) -> CompiledLayers | None:
    from specgrove.runtime.compiled_step import CompiledLayers  # imports Numba

    return CompiledLayers.of(models)


def _shape(model: Any) -> tuple[object, ...] | None:
    """What models must have in common to run as one; None for a model with parts that are not written out here."""
    config = model.config
    if config.model_type not in KNOWN_MODEL_TYPES or config.hidden_act != "silu":
        return None
    attentions = [layer.self_attn for layer in model.model.layers]
    # Some architectures keep the window in the attention, others in the config.
    if any(getattr(place, "sliding_window", None) is not None for place in (config, *attentions)):
        return None
    if any(attention.head_dim % 2 for attention in attentions):
        return None
    return (
        config.model_type,
        getattr(config, "attention_bias", False),
        getattr(config, "mlp_bias", False),
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        attentions[0].head_dim,
        config.rms_norm_eps,
        repr(config.rope_parameters),
        config.max_position_embeddings,
        config.vocab_size,
        next(model.parameters()).dtype,
    )


def _by_model(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """[K, N, ...] from K times [N, ...]."""
    return rows[0][None] if len(rows) == 1 else torch.stack(list(rows))


def _layer(layers: Sequence[Any]) -> _Layer:
    """One layer of all models."""
    attentions = [layer.self_attn for layer in layers]
    mlps = [layer.mlp for layer in layers]
    return _Layer(
        attention_norm=_norm([layer.input_layernorm for layer in layers]),
        projections=joint([side_by_side([a.q_proj, a.k_proj, a.v_proj]) for a in attentions]),
        output=joint([attention.o_proj for attention in attentions]),
        mlp_norm=_norm([layer.post_attention_layernorm for layer in layers]),
        gate_and_up=joint([side_by_side([mlp.gate_proj, mlp.up_proj]) for mlp in mlps]),
        down=joint([mlp.down_proj for mlp in mlps]),
    )


def _norm(norms: Sequence[Any]) -> _Norm:
    weight = torch.stack([norm.weight.detach() for norm in norms])[:, None].float()
    hidden_size = weight.shape[-1]
    floor = torch.tensor(math.sqrt(hidden_size * norms[0].variance_epsilon), device=weight.device)
    return _Norm(weight * math.sqrt(hidden_size), floor)
