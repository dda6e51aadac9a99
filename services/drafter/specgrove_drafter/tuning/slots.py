"""A KV cache of independent slots, so that a finished document is replaced while its neighbours go on.

    slot 0   [ system prompt | user turn | answer ......]      lengths[0] = 143
    slot 1   [ system prompt | us]                             lengths[1] = 31
    ...
    groups of neighbouring slots attend together, each up to its own longest document

Generation is bound by bytes: attention reads every slot up to the longest one, hence the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from specgrove.runtime.features import unit_rms
from specgrove_drafter.tuning.hub import register_attention

ATTENTION_NAME = "specgrove_slots"
GROUP_SLOTS = 8


@dataclass(slots=True)
class SlotCache:
    """Keys and values of `num_slots` documents; `keys[layer]` is [slots, kv_heads, capacity, head_dim]."""

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor  # int64 [slots], positions already written
    # The rows of the running forward: one slot index and one first position each; set by `run_rows`.
    rows: slice = field(default_factory=lambda: slice(0, 0))
    positions: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.int64))
    spans: list[tuple[int, int, int, Tensor]] = field(default_factory=list)

    @classmethod
    def for_model(cls, model: Any, num_slots: int, capacity: int) -> SlotCache:
        config, parameter = model.config, next(model.parameters())
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (num_slots, config.num_key_value_heads, capacity, head_dim)
        blank = [
            torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
            for _ in range(2 * config.num_hidden_layers)
        ]
        lengths = torch.zeros(num_slots, dtype=torch.int64, device=parameter.device)
        return cls(keys=blank[0::2], values=blank[1::2], lengths=lengths)

    def plan_rows(self, rows: slice, width: int) -> Tensor:
        """Prepare a forward of `width` new tokens in each slot of `rows`; returns position ids int64 [rows, width]."""
        steps = torch.arange(width, device=self.lengths.device)
        self.rows = rows
        self.positions = self.lengths[rows, None] + steps
        self.spans = []
        start, stop = rows.start, rows.stop
        ends = (self.lengths[rows] + width).tolist()
        for first in range(start, stop, GROUP_SLOTS):
            last = min(first + GROUP_SLOTS, stop)
            longest = max(ends[first - start : last - start])
            seen = torch.arange(longest, device=self.lengths.device)
            mask = seen <= self.positions[first - start : last - start, :, None]  # bool [group, width, longest]
            self.spans.append((first, last, longest, mask[:, None]))
        return self.positions

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Write this layer's new keys and values, then attend; query [rows, heads, width, head_dim] -> same shape."""
        start = self.rows.start
        slot_ids = torch.arange(start, self.rows.stop, device=query.device)[:, None]
        self.keys[layer][slot_ids, :, self.positions] = key.transpose(1, 2)
        self.values[layer][slot_ids, :, self.positions] = value.transpose(1, 2)
        parts = []
        for first, last, longest, mask in self.spans:
            parts.append(
                _grouped_attention(
                    query[first - start : last - start],
                    self.keys[layer][first:last, :, :longest],
                    self.values[layer][first:last, :, :longest],
                    mask,
                    scaling,
                )
            )
        return torch.cat(parts)

    def snapshot(self, slot: int) -> list[tuple[Tensor, Tensor]]:
        """A copy of one slot's keys and values, per layer, each [kv_heads, length, head_dim]."""
        length = int(self.lengths[slot])
        return [
            (k[slot, :, :length].clone(), v[slot, :, :length].clone())
            for k, v in zip(self.keys, self.values, strict=True)
        ]

    def restore(self, slot: int, copies: list[tuple[Tensor, Tensor]]) -> None:
        """Start a slot from a snapshot."""
        length = copies[0][0].shape[1]
        for layer, (key, value) in enumerate(copies):
            self.keys[layer][slot, :, :length] = key
            self.values[layer][slot, :, :length] = value
        self.lengths[slot] = length


def _grouped_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Grouped-query attention that reads each key once; query [rows, heads, width, head_dim] -> same shape.

    For one new token a row, the query heads that share a key head become the rows of one product: twice as fast on a
    CPU as one product a head, and decoding is nothing but such rows.
    """
    rows, heads, width, head_dim = query.shape
    if width > 1:
        return nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=scaling, enable_gqa=True
        )
    heads_per_key = heads // keys.shape[1]
    grouped = query.reshape(rows, keys.shape[1], heads_per_key, head_dim)
    shared_mask = mask.expand(-1, 1, heads_per_key, -1)
    attended = nn.functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=shared_mask, scale=scaling)
    return attended.reshape(rows, heads, 1, head_dim)


def _slot_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: object
) -> tuple[Tensor, None]:
    """The function transformers calls in every layer; our cache rides in the keyword `slot_cache`."""
    cache = kwargs["slot_cache"]
    assert isinstance(cache, SlotCache)
    attended = cache.attend(module.layer_idx, query, key, value, float(module.scaling))
    return attended.transpose(1, 2), None


def use_slot_attention(model: Any) -> None:
    """Make `model` attend through the `SlotCache` given to each forward."""
    register_attention(ATTENTION_NAME, _slot_attention)
    model.set_attn_implementation(ATTENTION_NAME)


@dataclass(frozen=True, slots=True)
class RowStates:
    """What the target thinks of each row: the final normalised states and the features, both [rows, width, .]."""

    final: Tensor
    features: Tensor


def run_rows(
    model: Any, cache: SlotCache, rows: slice, tokens: Tensor, feature_layers: Sequence[int] = ()
) -> RowStates:
    """Run int64 [rows, width] tokens after what the slots hold; `feature_layers` count from 1."""
    positions = cache.plan_rows(rows, tokens.shape[1])
    output = model.model(
        input_ids=tokens,
        position_ids=positions,
        use_cache=False,
        slot_cache=cache,
        output_hidden_states=bool(feature_layers),
    )
    cache.lengths[rows] += tokens.shape[1]
    final: Tensor = output.last_hidden_state
    inner = [unit_rms(output.hidden_states[layer]) for layer in feature_layers]
    return RowStates(final, torch.cat(inner, dim=-1) if inner else final[..., :0])
