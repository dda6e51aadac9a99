"""Wherever a sequence's slots lie, in one run, in several or scattered, its rows see the same keys."""

from __future__ import annotations

import pytest
import torch

from specgrove.runtime.attention import PackedPart
from specgrove.runtime.lean_attention import SequenceAttention
from specgrove_kernels.tree_attention import TailMask, tree_attention_reference

_GROUP, _KEY_HEADS, _HEAD_DIM, _ROWS, _KEYS, _SLOTS = 3, 2, 8, 5, 301, 2000


def _slots(kind: str) -> torch.Tensor | slice:
    if kind == "one run":
        return slice(40, 40 + _KEYS)
    if kind == "a shared run and its own":
        return torch.cat([torch.arange(1000, 1160), torch.arange(16, 16 + _KEYS - 160)])
    if kind == "tail cut in two":
        return torch.cat([torch.arange(500, 500 + _KEYS - 2), torch.arange(30, 32)])
    return torch.randperm(_SLOTS, generator=torch.Generator().manual_seed(1))[:_KEYS]


@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize(
    ("kind", "num_runs"),
    [("one run", 1), ("a shared run and its own", 2), ("tail cut in two", 2), ("scattered", 1)],
)
def test_rows_see_the_same_keys_wherever_they_lie(kind: str, num_runs: int, has_mask: bool) -> None:
    torch.manual_seed(2)
    cache = torch.randn(2, 2, _SLOTS, _KEY_HEADS, _HEAD_DIM)
    visible = torch.tril(torch.ones(_ROWS, _ROWS, dtype=torch.bool)) if has_mask else None
    part = PackedPart(0, _ROWS, slice(0, 0), _slots(kind), TailMask(visible))
    rows = torch.randn(_ROWS, _KEY_HEADS, _GROUP, _HEAD_DIM)
    query = rows.transpose(0, 1).reshape(_KEY_HEADS, _ROWS * _GROUP, _HEAD_DIM)
    mixed = torch.full_like(query, float("nan"))
    attention = SequenceAttention.plan(part, query, mixed, _GROUP, *cache.unbind(1))
    assert len(attention.runs) == num_runs
    for layer in (0, 1, 0):  # buffers hold what another layer left
        attention.attend(layer)
        keys, values = cache[layer][:, part.read_slots]
        expected = tree_attention_reference(rows.flatten(1, 2), keys, values, part.mask, scaling=1.0)
        actual = mixed.view(_KEY_HEADS, _ROWS, _GROUP, _HEAD_DIM).transpose(0, 1).flatten(1, 2)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_short_runs_are_gathered() -> None:
    slots = torch.cat([torch.arange(first, first + 16) for first in range(0, 640, 64)])
    part = PackedPart(0, 1, slice(0, 0), slots, TailMask(None))
    query = torch.randn(_KEY_HEADS, _GROUP, _HEAD_DIM)
    cache = torch.randn(1, _SLOTS, _KEY_HEADS, _HEAD_DIM)
    assert len(SequenceAttention.plan(part, query, torch.empty_like(query), _GROUP, cache, cache).runs) == 1
