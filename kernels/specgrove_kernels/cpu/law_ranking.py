"""The likeliest tokens under the mean law of several models, in one pass over their logits.

    law of model k   softmax(logits[k] / scale)          mean   sum over k of weight[k] * law[k]

A token that the mean gives less than 1e-38 is none of them: its logarithm is -inf here.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from specgrove_kernels.cpu.addresses import floats_at
from specgrove_kernels.cpu.compiled import compiled, told_after
from specgrove_kernels.cpu.lanes import WIDTH, add, exp, fill, load, multiply_add, store

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


_log = logging.getLogger(__name__)


@compiled
def rank_laws(
    logits: Ints,  # [3]: the address of float32 [N, K, V], then how far apart rows and models lie
    log_weights: Floats,  # [N, K]
    num_tokens: int,  # V
    hidden_token: int,  # never listed, though its mass counts; -1 for none
    scale: float,
    ids: Ints,  # [N, C], written: best first, lower ids first among equals
    log_probs: Floats,  # [N, C], written
    shares: Floats,  # [N, C, K], written: what each model alone gives
) -> None:
    """List the C likeliest tokens of each row; there must be as many."""
    num_rows, num_models = log_weights.shape
    laws = np.empty((num_models, num_tokens), dtype=np.float32)
    totals = np.empty(num_models, dtype=np.float32)
    mean = np.empty(num_tokens, dtype=np.float32)
    for row in range(num_rows):
        for model in range(num_models):
            numbers = floats_at(logits[0] + 4 * (row * logits[1] + model * logits[2]), num_tokens)
            totals[model] = _soften(numbers, np.float32(1.0) / scale, laws[model])
            weight = np.exp(log_weights[row, model]) / totals[model]
            if model == 0:
                for token in range(num_tokens):
                    mean[token] = weight * laws[0, token]
            else:
                for token in range(num_tokens):
                    mean[token] += weight * laws[model, token]
        if hidden_token >= 0:
            mean[hidden_token] = np.float32(-1.0)
        _list_largest(mean, ids[row], log_probs[row])
        for place in range(ids.shape[1]):
            log_probs[row, place] = np.log(log_probs[row, place])
            for model in range(num_models):
                shares[row, place, model] = laws[model, ids[row, place]] / totals[model]


def prepare() -> None:
    """Compile what is here, or fetch it from where it is kept: at load, not in the first request."""
    nobody = np.empty((0, 1), dtype=np.float32)
    with told_after(1.0, _log, "compiling the ranking of drafts for this processor"):
        rank_laws(
            np.zeros(3, dtype=np.int64), nobody, 1, -1, 1.0, np.empty((0, 1), np.int64), nobody, nobody[..., None]
        )


@compiled
def _soften(logits: Floats, sharpness: Any, out: Floats) -> Any:
    """out = e ** ((logits - largest) * sharpness); returns its sum."""
    num_tokens = len(logits)
    largest = logits[0]
    for token in range(num_tokens):
        largest = logits[token] if logits[token] > largest else largest
    whole = num_tokens // WIDTH * WIDTH
    sums = np.empty(WIDTH, dtype=np.float32)
    sum_a, factor, shift = fill(np.float32(0.0)), fill(sharpness), fill(-largest * sharpness)
    for token in range(0, whole, WIDTH):
        part = exp(multiply_add(load(logits, token), factor, shift))
        store(out, token, part)
        sum_a = add(sum_a, part)
    store(sums, 0, sum_a)
    total = np.float32(0.0)
    for token in range(whole, num_tokens):
        out[token] = np.exp((logits[token] - largest) * sharpness)
        total += out[token]
    for lane in range(WIDTH):
        total += sums[lane]
    return total


@compiled
def _list_largest(values: Floats, ids: Ints, largest: Floats) -> None:
    count = len(ids)
    used = 0
    for token in range(len(values)):
        value = values[token]
        if used == count and value <= largest[count - 1]:
            continue
        if used < count:
            used += 1
        place = used - 1
        while place > 0 and largest[place - 1] < value:
            largest[place] = largest[place - 1]
            ids[place] = ids[place - 1]
            place -= 1
        largest[place] = value
        ids[place] = token
