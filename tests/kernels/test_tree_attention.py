"""The reference of tree attention against attention written row by row in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from specgrove_kernels.tree_attention import TailMask, tree_attention_reference


@dataclass(frozen=True, slots=True)
class Case:
    prefix_len: int
    parents: tuple[int, ...]
    num_queries: int  # the last so many rows in flight ask
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 5
    value_dim: int = 5


def _rows_seen(parents: tuple[int, ...], row: int) -> set[int]:
    seen = set()
    while row >= 0:
        seen.add(row)
        row = parents[row]
    return seen


def _depth(parents: tuple[int, ...], row: int) -> int:
    return len(_rows_seen(parents, row)) - 1


def _by_hand(
    case: Case,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: list[int],
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    tail_len = len(case.parents)
    rows = []
    for place in range(case.num_queries):
        row = tail_len - case.num_queries + place
        seen = [*range(case.prefix_len), *(case.prefix_len + other for other in sorted(_rows_seen(case.parents, row)))]
        if window is not None:
            seen = [key for key in seen if positions[case.prefix_len + row] - positions[key] < window]
        heads = []
        for head in range(case.num_heads):
            kv_head = head // (case.num_heads // case.num_kv_heads)
            scores = keys[seen, kv_head].double() @ query[place, head].double() * scaling
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            heads.append(scores.softmax(0) @ values[seen, kv_head].double())
        rows.append(torch.stack(heads))
    return torch.stack(rows)


CASES = [
    Case(0, (-1,), 1),
    Case(7, (-1,), 1),
    Case(1, (-1, 0, 0, 1, -1), 5),
    Case(13, (-1, 0, 1, 2, 3, 4), 3),
    Case(33, tuple(row // 2 - 1 for row in range(70)), 70, num_heads=3, num_kv_heads=1, head_dim=8),
    Case(5, (-1, 0, 0, 0, 3), 2, num_heads=6, num_kv_heads=6, head_dim=3, value_dim=4),
]


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("case", CASES)
def test_it_is_attention_over_prefix_and_ancestors(case: Case, window: int | None, softcap: float | None) -> None:
    generator = torch.Generator().manual_seed(len(case.parents))
    tail_len, num_keys = len(case.parents), case.prefix_len + len(case.parents)
    query = torch.randn(case.num_queries, case.num_heads, case.head_dim, generator=generator)
    keys = torch.randn(num_keys, case.num_kv_heads, case.head_dim, generator=generator)
    values = torch.randn(num_keys, case.num_kv_heads, case.value_dim, generator=generator)
    depths = [_depth(case.parents, row) for row in range(tail_len)]
    positions = [*range(case.prefix_len), *(case.prefix_len + depth for depth in depths)]
    asking = range(tail_len - case.num_queries, tail_len)
    visible = torch.tensor([[key in _rows_seen(case.parents, row) for key in range(tail_len)] for row in asking])
    key_positions = torch.tensor(positions)
    mask = TailMask(visible, key_positions[-case.num_queries :], key_positions)
    scaling = 1 / math.sqrt(case.head_dim)
    result = tree_attention_reference(
        query, keys, values, mask, scaling=scaling, sliding_window=window, softcap=softcap
    )
    expected = _by_hand(case, query, keys, values, positions, scaling, window, softcap)
    assert result.shape == (case.num_queries, case.num_heads, case.value_dim)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=1e-5)


def test_without_a_mask_everything_is_seen() -> None:
    generator = torch.Generator().manual_seed(1)
    query, keys = torch.randn(1, 2, 4, generator=generator), torch.randn(6, 1, 4, generator=generator)
    positions = torch.arange(6)
    unmasked = TailMask(None, positions[-1:], positions)
    masked = TailMask(torch.ones(1, 3, dtype=torch.bool), positions[-1:], positions)
    results = [tree_attention_reference(query, keys, keys, mask, scaling=0.5) for mask in (unmasked, masked)]
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_close_and_keeps_its_type(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    query, keys = torch.randn(3, 4, 8, generator=generator), torch.randn(20, 2, 8, generator=generator)
    positions = torch.arange(20)
    mask = TailMask(torch.ones(3, 3, dtype=torch.bool).tril(), positions[-3:], positions)
    exact = tree_attention_reference(query, keys, keys, mask, scaling=0.35)
    half = tree_attention_reference(query.to(dtype), keys.to(dtype), keys.to(dtype), mask, scaling=0.35)
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), exact, atol=4e-2, rtol=4e-2)
