"""Attention of all rows of a step over their sequences' keys, in one compiled call, float32.

    lanes   row 0: query heads of one key head | row 1: ... | ...      rows of one sequence, eight lanes a pass
    scores  key by key, lane by lane           keys [slot, head, D] are read once for all lanes
    mixed   four lanes by 16 channels          values are read once for four lanes

Every sum runs in one order, over a row's head channels or over its keys, oldest first; a key that a row does not see
weighs exactly 0. So a row's result is bit for bit the same whatever other rows are in the step, wherever the keys lie,
and whether they are in flight or in the prefix. The plain statement of it is `tree_attention.tree_attention_reference`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specgrove_kernels.cpu.compiled import compiled_in_order
from specgrove_kernels.cpu.lanes import (
    WIDTH,
    add,
    exp,
    fetch_ahead,
    fill,
    larger,
    load,
    multiply_add,
    spread,
    store,
    subtract,
)

_KEYS_PER_PASS = 64  # their values stay in the fastest cache while all lanes read them

_KEYS_AHEAD = 8
_CACHE_LINE = 16  # float32

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SequenceKeys:
    """What the rows of one sequence may see."""

    start: int  # first packed row
    stop: int
    slots: slice | Ints  # of the prefix, then of all rows in flight up to the last of these, oldest first
    visible: Flags | None  # [stop - start, T], T <= number of slots: the last T are seen where this says so; None: all


@dataclass(frozen=True, slots=True)
class KeyLists:
    """The keys of all rows of a step, as `row_attention` takes them."""

    sequences: Ints  # [S, 6]: first row, end; first key in `slots`, first of the tail, end; first flag in `visible`
    slots: Ints  # [L], sequence by sequence
    visible: Flags  # [F], by sequence, then [rows, tail]

    @classmethod
    def of(cls, parts: Iterable[SequenceKeys]) -> KeyLists:
        """The lists of sequences whose rows are packed in this order."""
        sequences, slots, visible = [], [], []
        num_slots = num_flags = 0
        for part in parts:
            keys = np.arange(part.slots.start, part.slots.stop) if isinstance(part.slots, slice) else part.slots
            tail = 0 if part.visible is None else part.visible.shape[1]
            end = num_slots + len(keys)
            sequences.append((part.start, part.stop, num_slots, end - tail, end, num_flags))
            slots.append(keys)
            if part.visible is not None:
                visible.append(part.visible.ravel())
                num_flags += part.visible.size
            num_slots = end
        flags = np.concatenate(visible) if visible else np.empty(0, dtype=np.bool_)
        return cls(np.array(sequences, dtype=np.int64), np.concatenate(slots, dtype=np.int64), flags)


@compiled_in_order
def row_attention(
    queries: Floats,  # [K, N, H, D], rotated and scaled
    keys: Floats,  # [slots, K * H_kv, D]: one layer's
    values: Floats,  # [slots, K * H_kv, D]
    sequences: Ints,  # the three arrays of `KeyLists`
    slots: Ints,
    visible: Flags,
    mixed: Floats,  # [K, N, H * D], written
) -> None:
    """Let every row attend to the keys it sees. All arrays are contiguous; rows of no sequence keep what they hold."""
    num_models, num_rows, num_heads, head_dim = queries.shape
    num_key_heads = keys.shape[1] // num_models
    group = num_heads // num_key_heads
    most_keys = 0
    for sequence in range(len(sequences)):
        most_keys = max(most_keys, sequences[sequence, 4] - sequences[sequence, 2])
    asked = np.zeros((head_dim, WIDTH), dtype=np.float32)
    weights = np.empty((most_keys, WIDTH), dtype=np.float32)
    totals = np.empty(WIDTH, dtype=np.float32)
    sums = np.empty((WIDTH, head_dim), dtype=np.float32)
    flat_queries, flat_mixed = queries.reshape(-1, head_dim), mixed.reshape(-1, head_dim)
    heads = np.empty(WIDTH, dtype=np.int64)  # of each lane, its place in both
    for sequence in range(len(sequences)):
        first_row, end_row, first, tail, end, flags = sequences[sequence]
        seen = slots[first:end]
        for key_head in range(num_models * num_key_heads):
            first_head = key_head // num_key_heads * num_rows * num_heads + key_head % num_key_heads * group
            for query in range(0, (end_row - first_row) * group, WIDTH):
                used = min(WIDTH, (end_row - first_row) * group - query)
                for lane in range(used):
                    row, member = divmod(query + lane, group)
                    heads[lane] = first_head + (first_row + row) * num_heads + member
                    for channel in range(head_dim):
                        asked[channel, lane] = flat_queries[heads[lane], channel]
                _score(asked, keys, values, key_head, seen, weights)
                for lane in range(used):
                    flag = flags + (query + lane) // group * (end - tail)
                    for key in range(end - tail):
                        if not visible[flag + key]:
                            weights[tail - first + key, lane] = -np.inf
                _soften(weights, end - first, totals)
                sums[:] = 0.0
                for start in range(0, end - first, _KEYS_PER_PASS):
                    _mix(weights, start, used, values, key_head, seen[start : start + _KEYS_PER_PASS], sums)
                for lane in range(used):
                    share = np.float32(1.0) / totals[lane]
                    for channel in range(head_dim):
                        flat_mixed[heads[lane], channel] = sums[lane, channel] * share


@compiled_in_order
def _score(asked: Floats, keys: Floats, values: Floats, key_head: int, seen: Ints, scores: Floats) -> None:
    """scores[key, lane] = sum over d of asked[d, lane] * keys[seen[key], key_head, d]."""
    head_dim = keys.shape[2]
    stride, at = keys.shape[1] * head_dim, key_head * head_dim
    num_keys = len(seen)
    key = 0
    while key + 4 <= num_keys:  # four sums at once: one would wait for itself
        if key_head == 0:
            for later in range(key, key + 4):
                ahead = seen[min(later + _KEYS_AHEAD, num_keys - 1)] * stride
                for line in range(0, stride, _CACHE_LINE):
                    fetch_ahead(keys, ahead + line)
                for line in range(0, stride, _CACHE_LINE):
                    fetch_ahead(values, seen[later] * stride + line)
        key_a, key_b = seen[key] * stride + at, seen[key + 1] * stride + at
        key_c, key_d = seen[key + 2] * stride + at, seen[key + 3] * stride + at
        sum_a = sum_b = sum_c = sum_d = fill(np.float32(0.0))
        for channel in range(head_dim):
            one = load(asked, channel * WIDTH)
            sum_a = multiply_add(one, spread(keys, key_a + channel), sum_a)
            sum_b = multiply_add(one, spread(keys, key_b + channel), sum_b)
            sum_c = multiply_add(one, spread(keys, key_c + channel), sum_c)
            sum_d = multiply_add(one, spread(keys, key_d + channel), sum_d)
        store(scores, key * WIDTH, sum_a)
        store(scores, (key + 1) * WIDTH, sum_b)
        store(scores, (key + 2) * WIDTH, sum_c)
        store(scores, (key + 3) * WIDTH, sum_d)
        key += 4
    while key < num_keys:
        place, total = seen[key] * stride + at, fill(np.float32(0.0))
        for channel in range(head_dim):
            total = multiply_add(load(asked, channel * WIDTH), spread(keys, place + channel), total)
        store(scores, key * WIDTH, total)
        key += 1


@compiled_in_order
def _soften(scores: Floats, num_keys: int, totals: Floats) -> None:
    """Scores become e ** (score - largest) lane by lane, `totals` their sums."""
    largest = load(scores, 0)
    for key in range(1, num_keys):
        largest = larger(load(scores, key * WIDTH), largest)
    total = fill(np.float32(0.0))
    for key in range(num_keys):
        weight = exp(subtract(load(scores, key * WIDTH), largest))
        store(scores, key * WIDTH, weight)
        total = add(total, weight)
    store(totals, 0, total)


@compiled_in_order
def _mix(weights: Floats, start: int, used: int, values: Floats, key_head: int, seen: Ints, sums: Floats) -> None:
    """sums[lane, d] += sum over keys of weights[start + key, lane] * values[seen[key], key_head, d], key after key."""
    head_dim = values.shape[2]
    stride, at = values.shape[1] * head_dim, key_head * head_dim
    for lane in range(0, used, 4):  # what is loaded for one lane serves four
        for channel in range(0, head_dim - 2 * WIDTH + 1, 2 * WIDTH):
            _mix_patch(
                weights, start * WIDTH + lane, values, stride, at + channel, seen, sums, lane * head_dim + channel
            )
    for lane in range(used):
        for channel in range(head_dim // (2 * WIDTH) * (2 * WIDTH), head_dim):
            total = sums[lane, channel]
            for key in range(len(seen)):
                total += weights[start + key, lane] * values[seen[key], key_head, channel]
            sums[lane, channel] = total


@compiled_in_order
def _mix_patch(
    weights: Floats, weight_at: int, values: Floats, stride: int, at: int, seen: Ints, sums: Floats, sum_at: int
) -> None:
    """Four lanes, sixteen channels."""
    a, b, c, d = sum_at, sum_at + sums.shape[1], sum_at + 2 * sums.shape[1], sum_at + 3 * sums.shape[1]
    left_a, right_a, left_b, right_b = load(sums, a), load(sums, a + WIDTH), load(sums, b), load(sums, b + WIDTH)
    left_c, right_c, left_d, right_d = load(sums, c), load(sums, c + WIDTH), load(sums, d), load(sums, d + WIDTH)
    for key in range(len(seen)):
        place, weight = seen[key] * stride + at, weight_at + key * WIDTH
        left, right = load(values, place), load(values, place + WIDTH)
        weight_a, weight_b = spread(weights, weight), spread(weights, weight + 1)
        weight_c, weight_d = spread(weights, weight + 2), spread(weights, weight + 3)
        left_a, right_a = multiply_add(weight_a, left, left_a), multiply_add(weight_a, right, right_a)
        left_b, right_b = multiply_add(weight_b, left, left_b), multiply_add(weight_b, right, right_b)
        left_c, right_c = multiply_add(weight_c, left, left_c), multiply_add(weight_c, right, right_c)
        left_d, right_d = multiply_add(weight_d, left, left_d), multiply_add(weight_d, right, right_d)
    store(sums, a, left_a)
    store(sums, a + WIDTH, right_a)
    store(sums, b, left_b)
    store(sums, b + WIDTH, right_b)
    store(sums, c, left_c)
    store(sums, c + WIDTH, right_c)
    store(sums, d, left_d)
    store(sums, d + WIDTH, right_d)
