"""What all layers of one packed forward share: made once a step, not once a layer.

rotation   one complex number for each row and pair of head channels, the attention's scale multiplied in
slots      where the rows' keys and values go
masks      for each sequence one additive mask over its keys, laid out for grouped heads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """The rows of one sequence."""

    start: int
    stop: int
    read_slots: torch.Tensor | slice
    mask: torch.Tensor | None  # float32 [group * rows, keys], 0 or -inf; None where every key is seen


@dataclass(frozen=True, slots=True)
class LeanStep:
    """One forward's rotation, slots and masks; `attend` is one layer's attention."""

    storage: torch.Tensor  # [layers, 2, slots, K * H_kv, D]
    heads: HeadLayout
    turns: torch.Tensor  # complex64 [N, H + H_kv, D / 2]
    write_slots: torch.Tensor | slice
    parts: tuple[_Attended, ...]

    @classmethod
    def plan(cls, step: PackedStep, heads: HeadLayout, cos: torch.Tensor, sin: torch.Tensor) -> LeanStep:
        """`cos` and `sin` are float [1, N, D], both halves alike, as `transformers` makes them."""
        half = heads.head_dim // 2
        turn = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
        scale = torch.ones(heads.num_heads + heads.num_kv_heads, 1, device=cos.device)
        scale[: heads.num_heads] = heads.scaling
        parts = tuple(
            _Attended(part.start, part.stop, part.read_slots, _mask(part, heads.group)) for part in step.parts
        )
        return cls(step.cache.storage, heads, turn[:, None] * scale, _write_slots(step.parts, cos.device), parts)

    def rotate(self, rows: torch.Tensor) -> torch.Tensor:
        """Queries and keys [K, N, H + H_kv, D], rotated and queries scaled.

        What comes in as two halves goes out in pairs: the order of channels is nobody's business as long as queries and
        keys agree, and one product of complex numbers takes the place of six operators.
        """
        first, second = rows.float().chunk(2, dim=-1)
        turned = torch.view_as_real(torch.complex(first, second) * self.turns)
        return turned.flatten(-2).to(rows.dtype)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [K, N, H, D]
        key: torch.Tensor,  # [K, N, H_kv, D]
        value: torch.Tensor,  # [K, N, H_kv, D]
    ) -> torch.Tensor:  # [K, N, H * D]
        """Write the rows' keys and values, then let every row see its prefix, its ancestors and itself."""
        keys, values = self.storage[layer]
        _write(keys, self.write_slots, key)
        _write(values, self.write_slots, value)
        mixed = [
            _attention(
                query[:, part.start : part.stop], keys[part.read_slots], values[part.read_slots], part.mask, self.heads
            )
            for part in self.parts
        ]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)


def _attention(
    query: torch.Tensor,  # [K, n, H, D], scaled
    keys: torch.Tensor,  # [L, K * H_kv, D]
    values: torch.Tensor,  # [L, K * H_kv, D]
    mask: torch.Tensor | None,  # float32 [group * n, L]
    heads: HeadLayout,
) -> torch.Tensor:  # [K, n, H * D]
    num_models, num_rows = query.shape[:2]
    shape = (num_models, num_rows, heads.num_kv_heads, heads.group, heads.head_dim)
    folded = query.reshape(shape).permute(0, 2, 3, 1, 4).reshape(-1, heads.group * num_rows, heads.head_dim)
    transposed = keys.permute(1, 2, 0)
    if query.dtype == torch.float32:
        scores = (
            torch.bmm(folded, transposed) if mask is None else torch.baddbmm(mask[None], folded, transposed)
        )  # [K * H_kv, group * n, L]
        weights = scores.softmax(dim=-1)
    else:
        scores = torch.bmm(folded, transposed).float()
        weights = (scores if mask is None else scores.add_(mask)).softmax(dim=-1).to(query.dtype)
    mixed = torch.bmm(weights, values.transpose(0, 1))
    unfolded = mixed.view(num_models, heads.num_kv_heads, heads.group, num_rows, heads.head_dim)
    return unfolded.permute(0, 3, 1, 2, 4).reshape(num_models, num_rows, heads.num_heads * heads.head_dim)


def _write(cache: torch.Tensor, slots: torch.Tensor | slice, rows: torch.Tensor) -> None:
    """Rows [K, N, H_kv, D] into slots [slots, K * H_kv, D]."""
    joined = rows[0] if rows.shape[0] == 1 else rows.transpose(0, 1).flatten(1, 2)
    if isinstance(slots, slice):
        cache[slots].copy_(joined)
    else:
        cache.index_copy_(0, slots, joined)


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


def _mask(part: PackedPart, group: int) -> torch.Tensor | None:
    visible = part.mask.visible  # bool [n, T], the tail alone
    if visible is None:
        return None
    num_rows, tail_len = visible.shape
    mask = torch.zeros(num_rows, part.mask.key_positions.shape[0], device=visible.device)
    mask[:, mask.shape[1] - tail_len :].masked_fill_(~visible, float("-inf"))
    return mask.repeat(group, 1)
