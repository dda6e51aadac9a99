"""What a lean decoder's layers share in one forward over the paged kernels; the counterpart of `lean_step.LeanStep`.

Nothing here is made from values on the host, so a forward can be recorded as a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specgrove.runtime.attention import PackedStep
from specgrove.runtime.lean_step import HeadLayout
from specgrove.runtime.paged_rows import PagedRows


@dataclass(frozen=True, slots=True)
class PagedStep:
    """One forward's rotation; slots and masks are the kernels' business."""

    heads: HeadLayout
    cos: torch.Tensor  # float32 [N, 1, D / 2]
    sin: torch.Tensor  # float32 [N, 1, D / 2]
    storage: torch.Tensor  # [layers, 2, slots, K * H_kv, D]
    rows: PagedRows

    @classmethod
    def plan(
        cls, step: PackedStep, rows: PagedRows, heads: HeadLayout, cos: torch.Tensor, sin: torch.Tensor
    ) -> PagedStep:
        """`cos` and `sin` are float [1, N, D], both halves alike, as `transformers` makes them."""
        half = heads.head_dim // 2
        return cls(heads, cos[0, :, None, :half].float(), sin[0, :, None, :half].float(), step.cache.storage, rows)

    def attend(self, layer: int, columns: torch.Tensor) -> torch.Tensor:  # [K, N, (H + 2 H_kv) * D] -> [K, N, H * D]
        """Write the rows' keys and values, then let every row see its prefix, its ancestors and itself."""
        heads = self.heads
        by_head = columns.unflatten(2, (heads.num_columns, heads.head_dim))
        turned = self._rotate(by_head[:, :, : heads.num_turned])
        query, key = turned[:, :, : heads.num_heads], turned[:, :, heads.num_heads :]
        num_models, num_rows = columns.shape[:2]
        query, key, value = (_side_by_side(part) for part in (query, key, by_head[:, :, heads.num_turned :]))
        mixed = self.rows.attend(query, key, value, self.storage[layer], heads.scaling)
        if num_models == 1:
            return mixed.view(1, num_rows, -1)
        return mixed.view(num_rows, num_models, -1).transpose(0, 1)

    def _rotate(self, rows: torch.Tensor) -> torch.Tensor:
        """Queries and keys [K, N, H + H_kv, D], rotated. Queries are not scaled: the kernel does it in float32."""
        if self.heads.is_paired:
            first, second = rows.float().unflatten(-1, (-1, 2)).unbind(-1)
        else:
            first, second = rows.float().chunk(2, dim=-1)
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        joined = torch.stack(turned, dim=-1).flatten(-2) if self.heads.is_paired else torch.cat(turned, dim=-1)
        return joined.to(rows.dtype)


def _side_by_side(parts: torch.Tensor) -> torch.Tensor:
    """[N, K * heads, D] from [K, N, heads, D]: to the kernels several models are one with more heads."""
    return parts[0] if parts.shape[0] == 1 else parts.transpose(0, 1).flatten(1, 2)
