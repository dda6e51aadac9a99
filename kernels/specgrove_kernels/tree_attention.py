"""Tree attention over one sequence: the readable reference in plain torch, and the CPU path.

Keys are the cached prefix followed by the rows that are not committed yet (the tail); a row sees the whole prefix, its
ancestors in the tail, and itself:

                 prefix (committed)     tail (rows in flight)
                 k0 k1 k2 k3 k4 k5   |  root  a   b   c         root ─┬─ a ── b
      query root  x  x  x  x  x  x   |   x    .   .   .               └─ c
      query a     x  x  x  x  x  x   |   x    x   .   .
      query b     x  x  x  x  x  x   |   x    x   x   .
      query c     x  x  x  x  x  x   |   x    .   .   x

Grouped-query heads are folded into the row dimension, so keys and values are read once and never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TailMask:
    """Who sees whom beyond "everybody sees the prefix". `visible` is None for a single row at the end of a chain.

    Positions are needed for sliding windows only.
    """

    visible: torch.Tensor | None  # bool [N, T]; T = rows in flight, the queries are the last N of them
    query_positions: torch.Tensor | None = None  # int64 [N]
    key_positions: torch.Tensor | None = None  # int64 [L], prefix and tail


def tree_attention_reference(
    query: torch.Tensor,  # [N, H, D]
    keys: torch.Tensor,  # [L, H_kv, D], prefix then tail
    values: torch.Tensor,  # [L, H_kv, D_v]
    mask: TailMask,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:  # [N, H, D_v], dtype of query
    """Softmax attention of N rows of one sequence. Scores and softmax are float32.

    `sliding_window` w limits a row at position p to keys at positions above p - w; `softcap` is Gemma 2's tanh cap.
    """
    num_rows, num_heads, head_dim = query.shape
    num_keys, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    # [N, H, D] -> [H_kv, G * N, D]: head h reads key-value head h // G.
    folded = query.view(num_rows, num_kv_heads, group, head_dim).permute(1, 2, 0, 3).reshape(num_kv_heads, -1, head_dim)
    scores = torch.bmm(folded, keys.permute(1, 2, 0)).float().mul_(scaling)  # [H_kv, G * N, L]
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    by_row = scores.view(num_kv_heads, group, num_rows, num_keys)
    if mask.visible is not None:
        tail_len = mask.visible.shape[1]
        by_row[..., num_keys - tail_len :].masked_fill_(~mask.visible, float("-inf"))
    if sliding_window is not None:
        if mask.query_positions is None or mask.key_positions is None:
            raise ValueError("a sliding window needs the positions of rows and keys")
        distance = mask.query_positions[:, None] - mask.key_positions[None, :]
        by_row.masked_fill_(distance >= sliding_window, float("-inf"))
    weights = scores.softmax(dim=-1).to(values.dtype)
    mixed = torch.bmm(weights, values.transpose(0, 1))  # [H_kv, G * N, D_v]
    return mixed.view(num_kv_heads, group, num_rows, -1).permute(2, 0, 1, 3).reshape(num_rows, num_heads, -1)
