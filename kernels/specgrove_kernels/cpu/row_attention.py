"""Attention of all rows of a step over their sequences' keys, in one compiled call, float32.

    lanes   row 0: query heads of one key head | row 1: ... | ...      rows of one sequence, eight lanes a pass
    scores  key by key, lane by lane           keys [slot, head, D] are read once for all lanes
    mixed   query by query, along D            values come from the cache that the first query has filled

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
    fill,
    larger,
    load,
    multiply_add,
    spread,
    store,
    subtract,
)

_KEYS_PER_PASS = 64  # their values stay in the fastest cache while all lanes read them

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
    num_models, _, num_heads, head_dim = queries.shape
    num_key_heads = keys.shape[1] // num_models
    group = num_heads // num_key_heads
    most_keys = 0
    for sequence in range(len(sequences)):
        most_keys = max(most_keys, sequences[sequence, 4] - sequences[sequence, 2])
    asked = np.zeros((head_dim, WIDTH), dtype=np.float32)
    weights = np.empty((most_keys, WIDTH), dtype=np.float32)
    totals = np.empty(WIDTH, dtype=np.float32)
    for sequence in range(len(sequences)):
        first_row, end_row, first, tail, end, flags = sequences[sequence]
        num_queries = (end_row - first_row) * group
        seen = slots[first:end]
        for key_head in range(num_models * num_key_heads):
            model, head = key_head // num_key_heads, key_head % num_key_heads * group
            for query in range(0, num_queries, WIDTH):
                used = min(WIDTH, num_queries - query)
                for lane in range(used):
                    row = first_row + (query + lane) // group
                    for channel in range(head_dim):
                        asked[channel, lane] = queries[model, row, head + (query + lane) % group, channel]
                _score(asked, keys, key_head, seen, weights)
                for key in range(tail - first, end - first):
                    for lane in range(used):
                        if not visible[flags + (query + lane) // group * (end - tail) + key - (tail - first)]:
                            weights[key, lane] = -np.inf
                _soften(weights, end - first, totals)
                for lane in range(used):
                    row = first_row + (query + lane) // group
                    at = (head + (query + lane) % group) * head_dim
                    mixed[model, row, at : at + head_dim] = 0.0
                for start in range(0, end - first, _KEYS_PER_PASS):
                    some = seen[start : start + _KEYS_PER_PASS]
                    for lane in range(used):
                        row = first_row + (query + lane) // group
                        at = (head + (query + lane) % group) * head_dim
                        _mix(weights, start, lane, values, key_head, some, mixed[model, row, at : at + head_dim])
                for lane in range(used):
                    row = first_row + (query + lane) // group
                    at = (head + (query + lane) % group) * head_dim
                    share = np.float32(1.0) / totals[lane]
                    for channel in range(at, at + head_dim):
                        mixed[model, row, channel] *= share


@compiled_in_order
def _score(asked: Floats, keys: Floats, key_head: int, seen: Ints, scores: Floats) -> None:
    """scores[key, lane] = sum over d of asked[d, lane] * keys[seen[key], key_head, d]."""
    head_dim = keys.shape[2]
    stride, at = keys.shape[1] * head_dim, key_head * head_dim
    num_keys = len(seen)
    key = 0
    while key + 4 <= num_keys:  # four sums at once: one would wait for itself
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
def _mix(
    weights: Floats, start: int, lane: int, values: Floats, key_head: int, seen: Ints, mixed: Floats
) -> None:  # mixed: [D]
    """mixed[d] += sum over keys of weights[start + key, lane] * values[seen[key], key_head, d], key after key."""
    head_dim = values.shape[2]
    stride, at = values.shape[1] * head_dim, key_head * head_dim
    channel = 0
    while channel + 8 * WIDTH <= head_dim:  # 64 channels: eight sums at once
        _mix_64(weights, start * WIDTH + lane, values, stride, at + channel, seen, mixed, channel)
        channel += 8 * WIDTH
    while channel + 2 * WIDTH <= head_dim:
        one, two = load(mixed, channel), load(mixed, channel + WIDTH)
        for key in range(len(seen)):
            place, weight = seen[key] * stride + at + channel, spread(weights, (start + key) * WIDTH + lane)
            one = multiply_add(weight, load(values, place), one)
            two = multiply_add(weight, load(values, place + WIDTH), two)
        store(mixed, channel, one)
        store(mixed, channel + WIDTH, two)
        channel += 2 * WIDTH
    while channel < head_dim:
        total = mixed[channel]
        for key in range(len(seen)):
            total += weights[start + key, lane] * values[seen[key], key_head, channel]
        mixed[channel] = total
        channel += 1


@compiled_in_order
def _mix_64(
    weights: Floats, weight_at: int, values: Floats, stride: int, at: int, seen: Ints, mixed: Floats, channel: int
) -> None:
    sum_a, sum_b = load(mixed, channel), load(mixed, channel + 8)
    sum_c, sum_d = load(mixed, channel + 16), load(mixed, channel + 24)
    sum_e, sum_f = load(mixed, channel + 32), load(mixed, channel + 40)
    sum_g, sum_h = load(mixed, channel + 48), load(mixed, channel + 56)
    for key in range(len(seen)):
        place, weight = seen[key] * stride + at, spread(weights, weight_at + key * WIDTH)
        sum_a = multiply_add(weight, load(values, place), sum_a)
        sum_b = multiply_add(weight, load(values, place + 8), sum_b)
        sum_c = multiply_add(weight, load(values, place + 16), sum_c)
        sum_d = multiply_add(weight, load(values, place + 24), sum_d)
        sum_e = multiply_add(weight, load(values, place + 32), sum_e)
        sum_f = multiply_add(weight, load(values, place + 40), sum_f)
        sum_g = multiply_add(weight, load(values, place + 48), sum_g)
        sum_h = multiply_add(weight, load(values, place + 56), sum_h)
    store(mixed, channel, sum_a)
    store(mixed, channel + 8, sum_b)
    store(mixed, channel + 16, sum_c)
    store(mixed, channel + 24, sum_d)
    store(mixed, channel + 32, sum_e)
    store(mixed, channel + 40, sum_f)
    store(mixed, channel + 48, sum_g)
    store(mixed, channel + 56, sum_h)
