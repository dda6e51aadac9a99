"""What penalties and biases should do, token by token in numpy: another way to write it than the sampler's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from specgrove.sampling.params import SamplingParams


def adjusted_by_hand(
    logits: np.ndarray,  # float32 [V]
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
) -> np.ndarray:  # float32 [V]
    """One row, as bias, repetition, frequency and presence leave it."""
    row = logits.astype(np.float32).copy()
    for token_id, bias in params.logit_bias:
        row[token_id] = row[token_id] + np.float32(bias)
    times = Counter(output)
    for token_id in range(len(row)):
        if token_id in times or token_id in prompt:
            penalty = np.float32(params.repetition_penalty)
            row[token_id] = row[token_id] / penalty if row[token_id] > 0 else row[token_id] * penalty
        row[token_id] -= np.float32(params.frequency_penalty) * np.float32(times[token_id])
        if token_id in times:
            row[token_id] -= np.float32(params.presence_penalty)
    return row
