"""Everything of a Llama-shaped layer but its matrix products, in a compiled call for each gap between two of them.

    add_and_norm ─▶ projections ─▶ attend ─▶ output ─▶ add_and_norm ─▶ gate and up ─▶ gate ─▶ down ─▶ (next layer)

Arrays are float32 and contiguous. No row's result depends on another row.
"""

from __future__ import annotations

import logging
from functools import cache

import numpy as np

from specgrove_kernels.cpu.compiled import compiled, compiled_in_order, told_after
from specgrove_kernels.cpu.lanes import WIDTH, add, divide, exp, fill, load, multiply, negate, store
from specgrove_kernels.cpu.row_attention import Flags, Floats, Ints, KeyLists, SequenceKeys, row_attention

_log = logging.getLogger(__name__)


@compiled
def norm(states: Floats, weights: Floats, number: int, epsilon: float, normed: Floats) -> None:
    """normed = states / root mean square of each row * weights[number].

    States and normed are [K, N, H], weights [norms, K, H].
    """
    num_models, num_rows, hidden_size = states.shape
    for model in range(num_models):
        for row in range(num_rows):
            square = np.float32(0.0)
            for place in range(hidden_size):
                square += states[model, row, place] * states[model, row, place]
            share = np.float32(1.0 / np.sqrt(square / hidden_size + epsilon))
            for place in range(hidden_size):
                normed[model, row, place] = states[model, row, place] * share * weights[number, model, place]


@compiled
def add_and_norm(states: Floats, addend: Floats, weights: Floats, number: int, epsilon: float, normed: Floats) -> None:
    """As `norm`, after `addend` [K, N, H] was added to the states where they are."""
    num_models, num_rows, hidden_size = states.shape
    for model in range(num_models):
        for row in range(num_rows):
            for place in range(hidden_size):
                states[model, row, place] += addend[model, row, place]
    norm(states, weights, number, epsilon, normed)


@compiled_in_order
def gate(gate_and_up: Floats, gated: Floats) -> None:
    """gated [K, N, I] = silu(gate) * up, which stand side by side in [K, N, 2 I]."""
    num_models, num_rows, width = gated.shape
    whole = width // WIDTH * WIDTH
    ending = np.zeros(2 * WIDTH, dtype=np.float32)
    for row in range(num_models * num_rows):
        at, up_at = row * 2 * width, row * 2 * width + width
        for place in range(0, whole, WIDTH):
            _gate_lanes(gate_and_up, at + place, up_at + place, gated, row * width + place)
        if whole < width:  # the rest of the row, through a place that eight lanes may overrun
            columns, results = gate_and_up.reshape(-1), gated.reshape(-1)
            for place in range(width - whole):
                ending[place], ending[WIDTH + place] = columns[at + whole + place], columns[up_at + whole + place]
            _gate_lanes(ending, 0, WIDTH, ending, 0)
            for place in range(width - whole):
                results[row * width + whole + place] = ending[place]


@compiled_in_order
def _gate_lanes(columns: Floats, gate_at: int, up_at: int, gated: Floats, at: int) -> None:
    opening = load(columns, gate_at)
    denominator = add(exp(negate(opening)), fill(np.float32(1.0)))
    store(gated, at, multiply(divide(opening, denominator), load(columns, up_at)))


@compiled
def attend(
    layer: int,
    columns: Floats,  # [K, N, (H + 2 H_kv) * D]: queries, keys, values; channels that turn together are neighbours
    turns: Floats,  # [N, D]: cosine and sine for each pair of channels
    scaling: float,
    storage: Floats,  # [layers, 2, slots, K * H_kv, D]
    write_slots: Ints,  # [N]
    sequences: Ints,  # `KeyLists`
    slots: Ints,
    visible: Flags,
    queries: Floats,  # [K, N, H, D], for what is not needed afterwards
    mixed: Floats,  # [K, N, H * D], written
) -> None:
    """Turn queries and keys, write keys and values into the cache, then let every row see what it may."""
    num_models, num_rows, num_heads, head_dim = queries.shape
    num_key_heads = storage.shape[3] // num_models
    keys, values = storage[layer, 0], storage[layer, 1]
    for model in range(num_models):
        for row in range(num_rows):
            slot, first = write_slots[row], model * num_key_heads
            by_head = columns[model, row].reshape(-1, head_dim)
            for head in range(num_heads):
                _turn(by_head[head], turns[row], scaling, queries[model, row, head])
            for head in range(num_key_heads):
                _turn(by_head[num_heads + head], turns[row], 1.0, keys[slot, first + head])
                for channel in range(head_dim):
                    values[slot, first + head, channel] = by_head[num_heads + num_key_heads + head, channel]
    row_attention(queries, keys, values, sequences, slots, visible, mixed)


@compiled
def _turn(channels: Floats, turn: Floats, scaling: float, turned: Floats) -> None:
    for pair in range(0, len(channels), 2):
        cosine, sine = turn[pair] * np.float32(scaling), turn[pair + 1] * np.float32(scaling)
        turned[pair] = channels[pair] * cosine - channels[pair + 1] * sine
        turned[pair + 1] = channels[pair] * sine + channels[pair + 1] * cosine


@cache
def prepare() -> None:
    """Compile all of these, or take them from where they are kept: once a process, before somebody waits for a step."""
    states, columns = (np.zeros((1, 1, width), dtype=np.float32) for width in (2, 6))
    weights, turns = np.zeros((1, 1, 2), dtype=np.float32), np.zeros((1, 2), dtype=np.float32)
    storage, queries = np.zeros((1, 2, 1, 1, 2), dtype=np.float32), np.zeros((1, 1, 1, 2), dtype=np.float32)
    lists = KeyLists.of([SequenceKeys(0, 1, slice(0, 1), None)])
    with told_after(1.0, _log, "compiling the small operators for this processor, which takes a while the first time"):
        norm(states, weights, 0, 1.0, np.empty_like(states))
        add_and_norm(states, states.copy(), weights, 0, 1.0, np.empty_like(states))
        gate(np.zeros((1, 1, 4), dtype=np.float32), states)
        attend(
            0,
            columns,
            turns,
            1.0,
            storage,
            np.zeros(1, dtype=np.int64),
            lists.sequences,
            lists.slots,
            lists.visible,
            queries,
            np.empty((1, 1, 2), dtype=np.float32),
        )
