"""Few rows through all layers of Llama-shaped int8 models of one shape, in one compiled call.

    embeddings ─▶ norm, projections, turn ─▶ cache, attention ─▶ output ─▶ norm, gate | up, silu ─▶ down ─▶ next layer

Matrices, norms and embeddings are named by their addresses: `LayerAddress` and `ModelAddress` say where in the tables
they stand. Attention is `row_attention`'s, products are `int8_rows`'s: no bit of a row depends on the rows beside it.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from specgrove_kernels.cpu.addresses import floats_at
from specgrove_kernels.cpu.compiled import compiled, told_after
from specgrove_kernels.cpu.int8_rows import multiply_rows, padded_width, split_row
from specgrove_kernels.cpu.lanes import WIDTH, add, divide, exp, fill, load, multiply, store, subtract
from specgrove_kernels.cpu.row_attention import row_attention

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class LayerAddress(IntEnum):
    """Columns of the table of layers; a product takes three, as `Int8Rows.addresses` gives them."""

    ATTENTION_NORM = 0  # float32 [H], times the root of H
    MLP_NORM = 1
    PROJECTIONS = 2  # to queries, keys and values, channels in pairs
    OUTPUT = 5
    GATE_AND_UP = 8
    DOWN = 11
    COUNT = 14


class ModelAddress(IntEnum):
    """Columns of the table of models."""

    EMBEDDING = 0  # float32 [V, H]
    FINAL_NORM = 1
    COUNT = 2


class Size(IntEnum):
    """Places in the list of sizes, which all models share."""

    HIDDEN = 0
    HEADS = 1
    KEY_HEADS = 2
    HEAD_DIM = 3
    MLP = 4
    VOCABULARY = 5
    COUNT = 6


_ATTENTION_NORM, _MLP_NORM = int(LayerAddress.ATTENTION_NORM), int(LayerAddress.MLP_NORM)
_PROJECTIONS, _OUTPUT = int(LayerAddress.PROJECTIONS), int(LayerAddress.OUTPUT)
_GATE_AND_UP, _DOWN = int(LayerAddress.GATE_AND_UP), int(LayerAddress.DOWN)
_EMBEDDING, _FINAL_NORM = int(ModelAddress.EMBEDDING), int(ModelAddress.FINAL_NORM)
_HIDDEN, _HEADS, _KEY_HEADS = int(Size.HIDDEN), int(Size.HEADS), int(Size.KEY_HEADS)
_HEAD_DIM, _MLP, _VOCABULARY = int(Size.HEAD_DIM), int(Size.MLP), int(Size.VOCABULARY)


_log = logging.getLogger(__name__)


@compiled
def run_layers(
    layers: Ints,  # [K, L, LayerAddress.COUNT]
    models: Ints,  # [K, ModelAddress.COUNT]
    sizes: Ints,  # [Size.COUNT]
    constants: Floats,  # [2]: the attention's scale, and H times the norms' epsilon
    rows: Ints,  # [3, N]: tokens, rows of `turns`, cache slots
    turns: Floats,  # [P, 2, D / 2]: cosines and sines
    storage: Floats,  # [L, 2, slots, K * H_kv, D]
    sequences: Ints,  # the three arrays of `row_attention.KeyLists`
    slots: Ints,
    visible: Flags,
    wanted: Ints,  # [W], ascending
    final: Floats,  # [K, W, H], written: states after the final norm
) -> None:
    """Keys and values of all rows go to the cache; states of the wanted ones come back."""
    num_models, num_layers = layers.shape[0], layers.shape[1]
    num_rows = rows.shape[1]
    hidden, mlp, head_dim = sizes[_HIDDEN], sizes[_MLP], sizes[_HEAD_DIM]
    mixed_width = sizes[_HEADS] * head_dim
    columns_width = mixed_width + 2 * sizes[_KEY_HEADS] * head_dim
    stride = max(columns_width, 2 * mlp)
    states = np.empty((num_models, num_rows * hidden), dtype=np.float32)
    queries = np.empty((num_models, num_rows, sizes[_HEADS], head_dim), dtype=np.float32)
    mixed = np.empty((num_models, num_rows, mixed_width), dtype=np.float32)
    wide = np.empty(num_rows * stride, dtype=np.float32)
    normed = np.empty(hidden, dtype=np.float32)
    split_hidden = np.empty((2 * num_rows, padded_width(hidden)), dtype=np.int8)
    split_mixed = np.empty((2 * num_rows, padded_width(mixed_width)), dtype=np.int8)
    split_mlp = np.empty((2 * num_rows, padded_width(mlp)), dtype=np.int8)
    sums = np.empty(2 * num_rows, dtype=np.int32)
    scales = np.empty(num_rows, dtype=np.float32)
    for model in range(num_models):
        embedding = floats_at(models[model, _EMBEDDING], sizes[_VOCABULARY] * hidden)
        for row in range(num_rows):
            _copy(embedding, rows[0, row] * hidden, states[model], row * hidden, hidden)
    for layer in range(num_layers):
        for model in range(num_models):
            table = layers[model, layer]
            norm = floats_at(table[_ATTENTION_NORM], hidden)
            _split_normed(states[model], norm, constants[1], normed, split_hidden, sums, scales, num_rows)
            product = table[_PROJECTIONS:]
            multiply_rows(product, columns_width, split_hidden, sums, scales, num_rows, wide, 0, stride, False)
            heads = sizes[_KEY_HEADS]
            for row in range(num_rows):
                key, value = storage[layer, 0, rows[2, row]], storage[layer, 1, rows[2, row]]
                turn = turns[rows[1, row]]
                _turn(wide, row * stride, turn, constants[0], queries[model, row], key, value, model * heads, heads)
        row_attention(queries, storage[layer, 0], storage[layer, 1], sequences, slots, visible, mixed)
        if layer == num_layers - 1 and len(wanted) < num_rows:
            # Below the last attention only the rows that somebody asks about are of use.
            num_rows = len(wanted)
            for model in range(num_models):
                for row in range(num_rows):
                    _copy(states[model], wanted[row] * hidden, states[model], row * hidden, hidden)
                    _copy(mixed[model, wanted[row]], 0, mixed[model, row], 0, mixed_width)
        for model in range(num_models):
            table = layers[model, layer]
            for row in range(num_rows):
                split_row(mixed[model, row], split_mixed[2 * row], split_mixed[2 * row + 1], sums, scales, row)
            product = table[_OUTPUT:]
            multiply_rows(product, hidden, split_mixed, sums, scales, num_rows, states[model], 0, hidden, True)
            norm = floats_at(table[_MLP_NORM], hidden)
            _split_normed(states[model], norm, constants[1], normed, split_hidden, sums, scales, num_rows)
            product = table[_GATE_AND_UP:]
            multiply_rows(product, 2 * mlp, split_hidden, sums, scales, num_rows, wide, 0, stride, False)
            for row in range(num_rows):
                gated = wide[row * stride : row * stride + mlp]
                _gate(gated, wide[row * stride + mlp : row * stride + 2 * mlp])
                split_row(gated, split_mlp[2 * row], split_mlp[2 * row + 1], sums, scales, row)
            product = table[_DOWN:]
            multiply_rows(product, hidden, split_mlp, sums, scales, num_rows, states[model], 0, hidden, True)
    for model in range(num_models):
        norm = floats_at(models[model, _FINAL_NORM], hidden)
        for row in range(num_rows):
            _normalise(states[model], row * hidden, norm, constants[1], final[model, row])


@compiled
def read_head(
    heads: Ints,  # [K, 3], as `Int8Rows.addresses`
    final: Floats,  # [K, W, H]
    logits: Floats,  # [W, K * V], written
) -> None:
    """Every model's states through its own head."""
    num_models, num_rows, hidden = final.shape
    num_outputs = logits.shape[1] // num_models
    split = np.empty((2 * num_rows, padded_width(hidden)), dtype=np.int8)
    sums = np.empty(2 * num_rows, dtype=np.int32)
    scales = np.empty(num_rows, dtype=np.float32)
    flat = logits.reshape(logits.size)
    for model in range(num_models):
        for row in range(num_rows):
            split_row(final[model, row], split[2 * row], split[2 * row + 1], sums, scales, row)
        first = model * num_outputs
        multiply_rows(heads[model], num_outputs, split, sums, scales, num_rows, flat, first, logits.shape[1], False)


def prepare() -> None:
    """Compile what is here, or fetch it from where it is kept: at load, not in the first request."""
    ints, floats = np.empty(0, dtype=np.int64), np.empty((1, 0, 1), dtype=np.float32)
    flags = np.empty(0, dtype=np.bool_)
    sizes = np.ones(Size.COUNT, dtype=np.int64)
    layers, models = np.empty((1, 0, LayerAddress.COUNT), dtype=np.int64), np.zeros((1, ModelAddress.COUNT), np.int64)
    storage, turns = np.empty((0, 2, 0, 1, 1), dtype=np.float32), np.empty((0, 2, 0), dtype=np.float32)
    with told_after(1.0, _log, "compiling the layers of SSMs for this processor, which takes a while the first time"):
        run_layers(layers, models, sizes, np.zeros(2, dtype=np.float32), ints.reshape(3, 0), turns, storage,
                   ints.reshape(0, 6), ints, flags, ints, floats)  # fmt: skip
        read_head(np.zeros((1, 3), dtype=np.int64), floats, np.empty((0, 0), dtype=np.float32))


@compiled
def _copy(source: Floats, first: int, target: Floats, at: int, count: int) -> None:
    for place in range(count):
        target[at + place] = source[first + place]


@compiled
def _split_normed(
    states: Floats,  # flat, row after row
    norm: Floats,  # [H]
    floor: float,
    normed: Floats,  # [H], scratch
    split: npt.NDArray[np.int8],  # [2 N, padded H], written
    sums: npt.NDArray[np.int32],
    scales: Floats,
    num_rows: int,
) -> None:
    for row in range(num_rows):
        _normalise(states, row * len(norm), norm, floor, normed)
        split_row(normed, split[2 * row], split[2 * row + 1], sums, scales, row)


@compiled
def _normalise(states: Floats, first: int, norm: Floats, floor: float, normed: Floats) -> None:
    """states / sqrt(mean of squares + eps) * weight, the root of H being in `norm`, H * eps in `floor`."""
    total = np.float32(0.0)
    for channel in range(len(norm)):
        total += states[first + channel] * states[first + channel]
    scale = np.float32(1.0) / np.sqrt(total + floor)
    for channel in range(len(norm)):
        normed[channel] = states[first + channel] * scale * norm[channel]


@compiled
def _turn(
    columns: Floats,  # from `first` on: [(H + 2 H_kv) * D], channels in pairs
    first: int,
    turns: Floats,  # [2, D / 2]
    scaling: float,
    query: Floats,  # [H, D], written
    key: Floats,  # [heads, D], written from `first_head` on
    value: Floats,  # the same
    first_head: int,
    num_key_heads: int,
) -> None:
    num_heads, head_dim = query.shape
    for head in range(num_heads):
        _turn_head(columns, first + head * head_dim, turns, scaling, query, head)
    keys = first + num_heads * head_dim
    values = keys + num_key_heads * head_dim
    for head in range(num_key_heads):
        _turn_head(columns, keys + head * head_dim, turns, np.float32(1.0), key, first_head + head)
        for channel in range(head_dim):
            value[first_head + head, channel] = columns[values + head * head_dim + channel]


@compiled
def _turn_head(columns: Floats, first: int, turns: Floats, scaling: Any, out: Floats, head: int) -> None:
    for pair in range(turns.shape[1]):
        cosine, sine = turns[0, pair] * scaling, turns[1, pair] * scaling
        one, other = columns[first + 2 * pair], columns[first + 2 * pair + 1]
        out[head, 2 * pair] = one * cosine - other * sine
        out[head, 2 * pair + 1] = one * sine + other * cosine


@compiled
def _gate(gate: Floats, up: Floats) -> None:
    """gate = silu(gate) * up."""
    whole = len(gate) // WIDTH * WIDTH
    one, zero = fill(np.float32(1.0)), fill(np.float32(0.0))
    for at in range(0, whole, WIDTH):
        value = load(gate, at)
        sigmoid = divide(one, add(one, exp(subtract(zero, value))))
        store(gate, at, multiply(multiply(value, sigmoid), load(up, at)))
    for at in range(whole, len(gate)):
        gate[at] = gate[at] / (np.float32(1.0) + np.exp(-gate[at])) * up[at]
