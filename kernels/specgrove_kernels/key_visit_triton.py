# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The inner step of paged tree attention: one block of keys goes into the running softmax of a tile.

Scores are taken to base 2, so that the weights are one `exp2`. A row that has seen no key yet has peak -inf and mass 0.
"""

import triton
import triton.language as tl


@triton.jit
def visit_keys(
    mixed,  # float32 [LANES, DIM], running sum of weighted values
    peak,  # float32 [LANES], running maximum of the scores, in base 2
    mass,  # float32 [LANES], running sum of the weights
    asked,
    keys,
    values,
    table,
    first,  # place of the first key
    limit,  # place after the last key there is
    cached_len,
    stride_slot,
    words,
    own_rows,
    is_row,
    chain,
    positions,
    tail_positions,
    scaling,
    softcap,
    window,
    IS_TAIL: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
):
    """The running softmax after `KEYS` more keys."""
    features = tl.arange(0, DIM)
    is_feature = features < HEAD_DIM
    places = first + tl.arange(0, KEYS)
    exists = places < limit
    blocks = tl.load(table + places // BLOCK_SIZE, mask=exists, other=0)
    offsets = (blocks.to(tl.int64) * BLOCK_SIZE + places % BLOCK_SIZE) * stride_slot
    key = tl.load(
        keys + offsets[None, :] + features[:, None], mask=exists[None, :] & is_feature[:, None], other=0.0
    )  # [DIM, KEYS]
    value = tl.load(
        values + offsets[:, None] + features[None, :], mask=exists[:, None] & is_feature[None, :], other=0.0
    )  # [KEYS, DIM]
    if UPCAST:
        key = key.to(tl.float32)
        value = value.to(tl.float32)
    scores = tl.dot(asked, key, input_precision="ieee") * scaling
    if HAS_SOFTCAP:
        ratio = scores / softcap
        # tanh by an exponential that cannot overflow.
        falling = tl.exp(-2.0 * tl.abs(ratio))
        capped = (1.0 - falling) / (1.0 + falling) * softcap
        scores = tl.where(ratio < 0, -capped, capped)
    visible = exists[None, :] & is_row[:, None]
    if IS_TAIL:
        tail_rows = places - cached_len
        # KEYS divides 64, so one word of each row covers the block.
        word = tl.load(words + (first - cached_len) // 64, mask=is_row & (chain == 0), other=0)
        bits = (word[:, None] >> (tail_rows % 64).to(tl.int64)[None, :]) & 1
        in_chain = (tail_rows[None, :] <= own_rows[:, None]) & (chain != 0)
        visible = visible & ((bits != 0) | in_chain)
    if HAS_WINDOW:
        key_positions = places
        if IS_TAIL:
            key_positions = tl.load(tail_positions + (places - cached_len), mask=exists, other=0)
        visible = visible & (positions[:, None] - key_positions[None, :] < window)
    scores = tl.where(visible, scores * 1.4426950408889634, float("-inf"))  # exp2 of scores times log2(e)
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # -inf minus -inf would be no number
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(peak - base)
    mass = mass * shrink + tl.sum(weights, axis=1)
    mixed = mixed * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return mixed, new_peak, mass
