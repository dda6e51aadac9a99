# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The second pass of attention over split prefixes: one softmax out of the shares' own."""

import torch
import triton
import triton.language as tl


def merge_splits(
    mixed: torch.Tensor,  # float32 [S, N, H, D], each share's mean of the values under its own softmax
    masses: torch.Tensor,  # float32 [S, N, H], log2 of each share's softmax denominator; -inf for an empty share
    output: torch.Tensor,  # [N, H, D], written
    row_starts: torch.Tensor,  # int32 [B + 1]; rows past its last entry pad the batch and stay as they are
) -> None:
    """`output` is the mean of the values under the softmax over all shares."""
    splits, num_rows, num_heads, head_dim = mixed.shape
    _merge[(num_rows, num_heads)](
        mixed,
        masses,
        output,
        row_starts,
        len(row_starts) - 1,
        splits,
        num_rows,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        SPLITS=triton.next_power_of_2(splits),
        DIM=triton.next_power_of_2(head_dim),
    )


@triton.jit(do_not_specialize=["num_sequences", "num_splits", "num_rows"])
def _merge(
    mixed,
    masses,
    output,
    row_starts,
    num_sequences,
    num_splits,
    num_rows,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    DIM: tl.constexpr,
):
    if tl.program_id(0) >= tl.load(row_starts + num_sequences):
        return
    place = tl.program_id(0).to(tl.int64) * NUM_HEADS + tl.program_id(1)
    splits = tl.arange(0, SPLITS)
    features = tl.arange(0, DIM)
    is_split = splits < num_splits
    is_feature = features < HEAD_DIM
    at = splits.to(tl.int64) * num_rows * NUM_HEADS + place
    logs = tl.load(masses + at, mask=is_split, other=float("-inf"))
    # A row sees itself, so one share at least has mass.
    weights = tl.exp2(logs - tl.max(logs, axis=0))
    parts = tl.load(
        mixed + at[:, None] * HEAD_DIM + features[None, :], mask=is_split[:, None] & is_feature[None, :], other=0.0
    )
    merged = tl.sum(parts * weights[:, None], axis=0) / tl.sum(weights, axis=0)
    tl.store(output + place * HEAD_DIM + features, merged.to(output.dtype.element_ty), mask=is_feature)
