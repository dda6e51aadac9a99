"""The attention function that `transformers` models call: writes keys and values to our cache, attends by tree.

Model code stays untouched: it hands over projected, rotated queries, keys and values of all packed rows, and the
`packed_step` keyword that came in with the forward says which rows belong to which sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from specgrove.errors import ModelLoadError
from specgrove.runtime.kv_cache import KVCache
from specgrove.runtime.paged_rows import PagedRows
from specgrove_kernels.tree_attention import TailMask, tree_attention_reference


@dataclass(frozen=True, slots=True)
class PackedPart:
    """The rows of one sequence in a packed forward."""

    start: int  # first packed row
    stop: int
    write_slots: torch.Tensor | slice  # where these rows' keys and values go
    read_slots: torch.Tensor | slice  # prefix, then all rows in flight
    mask: TailMask


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One forward: the cache it works on and its parts, which cover the packed rows in order.

    `paged` stands for the parts where a model attends through the paged kernels.
    """

    cache: KVCache
    parts: tuple[PackedPart, ...]
    paged: PagedRows | None = None


def packed_tree_attention(
    module: nn.Module,
    query: torch.Tensor,  # [1, H, N, D]
    key: torch.Tensor,  # [1, H_kv, N, D]
    value: torch.Tensor,  # [1, H_kv, N, D]
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    packed_step: PackedStep | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:  # [1, N, H, D]
    """Tree attention of all packed rows in one layer (the interface of `transformers` attention functions)."""
    if packed_step is None:
        raise ModelLoadError(
            f"{type(module).__name__} does not pass keyword arguments on to its attention function; "
            "this architecture is not supported"
        )
    layer: int = module.layer_idx  # type: ignore[assignment]
    storage = packed_step.cache.storage[layer]
    rows_of_query, rows_of_key, rows_of_value = (part[0].transpose(0, 1) for part in (query, key, value))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if packed_step.paged is not None:
        mixed = packed_step.paged.attend(rows_of_query, rows_of_key, rows_of_value, storage, scale)
        return mixed.unsqueeze(0), None
    outputs = []
    for part in packed_step.parts:
        storage[0, part.write_slots] = rows_of_key[part.start : part.stop]
        storage[1, part.write_slots] = rows_of_value[part.start : part.stop]
        outputs.append(
            tree_attention_reference(
                rows_of_query[part.start : part.stop].contiguous(),
                storage[0, part.read_slots],
                storage[1, part.read_slots],
                part.mask,
                scaling=scale,
                sliding_window=sliding_window,
                softcap=softcap,
            )
        )
    mixed = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return mixed.unsqueeze(0), None
