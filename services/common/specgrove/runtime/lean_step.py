"""What all layers of one packed forward share: made once a step, not once a layer.

rotation   one complex number for each row and pair of head channels, the attention's scale multiplied in
slots      where the rows' keys and values go
masks      for each sequence one additive mask over its keys, laid out for grouped heads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specgrove.runtime.attention import PackedPart, PackedStep


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Heads of one layer of one model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scaling: float

    @property
    def group(self) -> int:
        """Query heads that read the same keys."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class _Attended:
    """The rows of one sequence, and its keys and values by layer."""

    start: int
    stop: int
    mask: torch.Tensor | None  # float32 [1, group * rows, keys], 0 or -inf; None where every key is seen
    keys: Sequence[torch.Tensor]  # [K * H_kv, D, keys] each
    values: Sequence[torch.Tensor]  # [K * H_kv, keys, D] each


@dataclass(frozen=True, slots=True)
class LeanStep:
    """One forward's rotation, slots and masks; `attend` is one layer's attention.

    Views of the cache are made for all layers at once: a view costs as much as a small product.
    """

    heads: HeadLayout
    turns: torch.Tensor  # complex64 [N, H + H_kv, D / 2]
    written: Sequence[tuple[torch.Tensor, torch.Tensor]]  # by layer: where keys and values go
    write_slots: torch.Tensor | None  # int64 [N] within `written`; None where that is just the rows, in order
    parts: tuple[_Attended, ...]

    @classmethod
    def plan(cls, step: PackedStep, heads: HeadLayout, cos: torch.Tensor, sin: torch.Tensor) -> LeanStep:
        """`cos` and `sin` are float [1, N, D], both halves alike, as `transformers` makes them."""
        half = heads.head_dim // 2
        turn = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
        scale = torch.ones(heads.num_heads + heads.num_kv_heads, 1, device=cos.device)
        scale[: heads.num_heads] = heads.scaling
        keys, values = step.cache.storage.unbind(1)  # [layers, slots, K * H_kv, D]
        slots = _write_slots(step.parts, cos.device)
        if isinstance(slots, slice):
            written, index = _by_layer(keys[:, slots], values[:, slots]), None
        else:
            written, index = _by_layer(keys, values), slots
        parts = tuple(_attended(part, heads.group, keys, values) for part in step.parts)
        return cls(heads, turn[:, None] * scale, written, index, parts)

    def rotate(self, rows: torch.Tensor) -> torch.Tensor:
        """Queries and keys [K, N, H + H_kv, D], rotated and queries scaled.

        What comes in as two halves goes out in pairs: the order of channels is nobody's business as long as queries and
        keys agree, and one product of complex numbers takes the place of six operators.
        """
        first, second = rows.chunk(2, dim=-1)
        if rows.dtype == torch.float32:
            return torch.view_as_real(torch.complex(first, second).mul_(self.turns)).flatten(-2)
        turned = torch.complex(first.float(), second.float()).mul_(self.turns)
        return torch.view_as_real(turned).flatten(-2).to(rows.dtype)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [K, N, H, D]
        key: torch.Tensor,  # [K, N, H_kv, D]
        value: torch.Tensor,  # [K, N, H_kv, D]
    ) -> torch.Tensor:  # [K, N, H * D]
        """Write the rows' keys and values, then let every row see its prefix, its ancestors and itself."""
        for cache, rows in zip(self.written[layer], (key, value), strict=True):
            joined = rows[0] if rows.shape[0] == 1 else rows.transpose(0, 1).flatten(1, 2)
            if self.write_slots is None:
                cache.copy_(joined)
            else:
                cache.index_copy_(0, self.write_slots, joined)
        if len(self.parts) == 1:
            return _attention(query, self.parts[0], layer, self.heads)
        mixed = [_attention(query[:, part.start : part.stop], part, layer, self.heads) for part in self.parts]
        return torch.cat(mixed, dim=1)


def _attention(
    query: torch.Tensor,  # [K, n, H, D], scaled
    part: _Attended,
    layer: int,
    heads: HeadLayout,
) -> torch.Tensor:  # [K, n, H * D]
    num_models, num_rows = query.shape[:2]
    keys, values = part.keys[layer], part.values[layer]
    if num_rows == 1:  # nothing to be turned around
        folded = query.reshape(-1, heads.group, heads.head_dim)
    else:
        shape = (num_models, num_rows, heads.num_kv_heads, heads.group, heads.head_dim)
        folded = query.reshape(shape).permute(0, 2, 3, 1, 4).reshape(-1, heads.group * num_rows, heads.head_dim)
    if query.dtype != torch.float32:
        scores = torch.bmm(folded, keys).float()
        weights = (scores if part.mask is None else scores.add_(part.mask)).softmax(dim=-1).to(query.dtype)
    elif part.mask is None:
        weights = torch.bmm(folded, keys).softmax(dim=-1)  # [K * H_kv, group * n, L]
    else:
        weights = torch.baddbmm(part.mask, folded, keys).softmax(dim=-1)
    mixed = torch.bmm(weights, values)
    if num_rows == 1:
        return mixed.view(num_models, 1, -1)
    unfolded = mixed.view(num_models, heads.num_kv_heads, heads.group, num_rows, heads.head_dim)
    return unfolded.permute(0, 3, 1, 2, 4).reshape(num_models, num_rows, -1)


def _attended(part: PackedPart, group: int, keys: torch.Tensor, values: torch.Tensor) -> _Attended:
    """`keys` and `values` are the whole cache's, [layers, slots, K * H_kv, D]."""
    slots = part.read_slots
    if isinstance(slots, slice):
        mask = _mask(part, group, slots.stop - slots.start)
        read_keys = keys[:, slots].permute(0, 2, 3, 1).unbind(0)
        return _Attended(part.start, part.stop, mask, read_keys, values[:, slots].transpose(1, 2).unbind(0))
    mask = _mask(part, group, len(slots))
    return _Attended(
        part.start, part.stop, mask, _Gathered(keys, slots, (1, 2, 0)), _Gathered(values, slots, (1, 0, 2))
    )


class _Gathered(Sequence[torch.Tensor]):
    """Scattered slots by layer, copied together when a layer comes to them: its new rows are among them."""

    def __init__(self, cache: torch.Tensor, slots: torch.Tensor, order: tuple[int, int, int]) -> None:
        self._cache = cache
        self._slots = slots
        self._order = order

    def __len__(self) -> int:
        return len(self._cache)

    def __getitem__(self, layer: Any) -> Any:
        return self._cache[layer, self._slots].permute(self._order)


def _by_layer(keys: torch.Tensor, values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(keys.unbind(0), values.unbind(0), strict=True))


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


def _mask(part: PackedPart, group: int, num_keys: int) -> torch.Tensor | None:
    visible = part.mask.visible  # bool [n, T], the tail alone
    if visible is None:
        return None
    num_rows, tail_len = visible.shape
    mask = torch.zeros(num_rows, num_keys, device=visible.device)
    mask[:, num_keys - tail_len :].masked_fill_(~visible, float("-inf"))
    return mask.repeat(group, 1)[None]
