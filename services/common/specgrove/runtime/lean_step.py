"""What all layers of one packed forward share: made once a step, not once a layer.

    columns of a layer ──turns──▶ queries | keys | values ──▶ cache, attention ──▶ mixed
    [K, N, (H + 2 H_kv) * D]      one buffer, its views made once

turns      one complex number for each row and pair of head channels, the attention's scale multiplied in, ones for
           values: rotation is one product, and the copy out of the layer's columns too
slots      where the rows' keys and values go
sequences  their queries, keys, masks and results as views and buffers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specgrove.runtime.attention import PackedPart, PackedStep
from specgrove.runtime.lean_attention import SequenceAttention


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Heads of one layer of one model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scaling: float
    # Whether query and key channels come in the pairs that are turned together (float32 only), not as two halves.
    is_paired: bool = False

    @property
    def group(self) -> int:
        """Query heads that read the same keys."""
        return self.num_heads // self.num_kv_heads

    @property
    def num_turned(self) -> int:
        """Heads of queries and keys: those that are rotated."""
        return self.num_heads + self.num_kv_heads

    @property
    def num_columns(self) -> int:
        """Heads of queries, keys and values, side by side."""
        return self.num_heads + 2 * self.num_kv_heads


@dataclass(frozen=True, slots=True)
class LeanStep:
    """One forward's buffers and views; `attend` is one layer's attention."""

    heads: HeadLayout
    turns: torch.Tensor  # complex64 [N, (H + 2 H_kv) * D / 2]
    rotated: torch.Tensor  # [K, N, H + 2 H_kv, D]
    pairs: torch.Tensor | None  # `rotated` as complex64 [K, N, (H + 2 H_kv) * D / 2], where the columns come as pairs
    fresh: torch.Tensor  # the keys and values in `rotated`, [2, N, K, H_kv, D]
    written: Sequence[torch.Tensor]  # by layer: where they go, [2, N or slots, K, H_kv, D]
    write_slots: torch.Tensor | None  # int64 [N] within `written`; None where that is just the rows, in order
    folding: tuple[torch.Tensor, torch.Tensor] | None  # queries, and where they stand by key head
    unfolding: tuple[torch.Tensor, torch.Tensor] | None  # results by key head, and where they stand by row
    sequences: tuple[SequenceAttention, ...]
    mixed: torch.Tensor  # [K, N, H * D]

    @classmethod
    def plan(cls, step: PackedStep, heads: HeadLayout, cos: torch.Tensor, sin: torch.Tensor) -> LeanStep:
        """`cos` and `sin` are float [1, N, D], both halves alike, as `transformers` makes them."""
        storage, num_rows = step.cache.storage, cos.shape[1]
        num_models = storage.shape[3] // heads.num_kv_heads
        rotated = storage.new_empty(num_models, num_rows, heads.num_columns, heads.head_dim)
        pairs = rotated.flatten(2).view(torch.complex64) if heads.is_paired else None
        by_kind = rotated[:, :, heads.num_heads :].unflatten(2, (2, heads.num_kv_heads))
        slots = _write_slots(step.parts, cos.device)
        by_layer = storage.unflatten(3, (num_models, heads.num_kv_heads))
        index, written = (None, by_layer[:, :, slots]) if isinstance(slots, slice) else (slots, by_layer)
        by_key_head = (heads.num_kv_heads, heads.group)
        query = rotated[:, :, : heads.num_heads].unflatten(2, by_key_head)  # [K, N, H_kv, group, D]
        mixed = storage.new_empty(num_models, num_rows, heads.num_heads * heads.head_dim)
        result = mixed.unflatten(2, (*by_key_head, heads.head_dim))
        folding, unfolding = None, None
        if num_models > 1 or any(part.stop - part.start > 1 for part in step.parts):
            # `bmm` knows one stride for models and key heads, and one for rows and their group: one copy for all.
            in_rows = [view.transpose(1, 2) for view in (query, result)]  # [K, H_kv, N, group, D]
            query, result = (torch.empty_like(view, memory_format=torch.contiguous_format) for view in in_rows)
            folding, unfolding = (in_rows[0], query), (result, in_rows[1])
        else:
            query, result = query.transpose(1, 2), result.transpose(1, 2)
        return cls(
            heads,
            _turns(heads, cos, sin),
            rotated,
            pairs,
            by_kind.permute(2, 1, 0, 3, 4),
            written.unbind(0),
            index,
            folding,
            unfolding,
            _sequences(step, heads, query, result),
            mixed,
        )

    def attend(self, layer: int, columns: torch.Tensor) -> torch.Tensor:  # [K, N, (H + 2 H_kv) * D] -> [K, N, H * D]
        """Write the rows' keys and values, then let every row see its prefix, its ancestors and itself.

        The result is a buffer: the next layer writes to it.
        """
        self._rotate(columns)
        if self.write_slots is None:
            self.written[layer].copy_(self.fresh)
        else:
            self.written[layer].index_copy_(1, self.write_slots, self.fresh)
        if self.folding is not None:
            self.folding[1].copy_(self.folding[0])
        for sequence in self.sequences:
            sequence.attend(layer)
        if self.unfolding is not None:
            self.unfolding[1].copy_(self.unfolding[0])
        return self.mixed

    def _rotate(self, columns: torch.Tensor) -> None:
        """Queries and keys go to `rotated` turned, queries scaled too; values as they are.

        What comes in as two halves goes out in pairs: the order of channels is nobody's business as long as queries and
        keys agree, and one product of complex numbers takes the place of six operators.
        """
        heads = self.heads
        if self.pairs is not None:
            torch.mul(columns.view(torch.complex64), self.turns, out=self.pairs)
            return
        by_head = columns.unflatten(2, (-1, heads.head_dim))
        pairs = torch.complex(*by_head[:, :, : heads.num_turned].float().chunk(2, dim=-1))
        pairs.mul_(self.turns.unflatten(1, (heads.num_columns, -1))[:, : heads.num_turned])
        self.rotated[:, :, : heads.num_turned] = torch.view_as_real(pairs).flatten(-2)
        self.rotated[:, :, heads.num_turned :] = by_head[:, :, heads.num_turned :]


def _turns(heads: HeadLayout, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = heads.head_dim // 2
    turn = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
    turns = torch.ones(len(turn), heads.num_columns, half, dtype=turn.dtype, device=turn.device)
    turns[:, : heads.num_turned] = turn[:, None]
    turns[:, : heads.num_heads] *= heads.scaling
    return turns.flatten(1)


def _sequences(
    step: PackedStep,
    heads: HeadLayout,
    query: torch.Tensor,  # [K, H_kv, N, group, D]
    result: torch.Tensor,  # [K, H_kv, N, group, D]
) -> tuple[SequenceAttention, ...]:
    keys, values = step.cache.storage.unbind(1)  # [layers, slots, K * H_kv, D]
    planned = []
    for part in step.parts:
        shape = (-1, (part.stop - part.start) * heads.group, heads.head_dim)
        asked, answered = (view[:, :, part.start : part.stop].view(shape) for view in (query, result))
        planned.append(SequenceAttention.plan(part, asked, answered, heads.group, keys, values))
    return tuple(planned)


def _write_slots(parts: Sequence[PackedPart], device: torch.device) -> torch.Tensor | slice:
    """One address for all rows, whatever their sequences."""
    if len(parts) == 1:
        return parts[0].write_slots
    return torch.cat(
        [
            torch.arange(slots.start, slots.stop, device=device) if isinstance(slots, slice) else slots
            for slots in (part.write_slots for part in parts)
        ]
    )
