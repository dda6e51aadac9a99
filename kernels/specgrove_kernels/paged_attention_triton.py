# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Paged tree attention of a packed batch in Triton; equal to `paged_attention` within rounding.

One program takes one tile (rows of one sequence), one key-value head and one share of the keys:

    lanes of the tile   row 0: heads 0..G-1 | row 1: heads 0..G-1 | ...     all read the same keys, loaded once
    keys                |<-- prefix, in blocks of N keys, no mask -->|<-- tail, by ancestor words -->|
    shares              |    split 0     |    split 1     |      split 2                             |

With one split the tile's softmax is finished here; with more, `merge_splits` weighs the shares by their mass. Nothing
is read past the tile's last row in flight (parents come first) nor before its sliding window.
Scores, softmax and sums are float32. Annotations are not postponed here: Triton reads `tl.constexpr` from them.
"""

import torch
import triton
import triton.language as tl

from specgrove_kernels.key_visit_triton import visit_keys
from specgrove_kernels.paged_batch import PagedBatch
from specgrove_kernels.split_merge_triton import merge_splits

_MIN_DOT = 16  # tl.dot wants at least so many of everything
_KEY_TILE_BYTES = 16384
_MIN_KEYS_PER_SPLIT = 256
_MAX_SPLITS = 32
_WANTED_PROGRAMS = 264  # two for each of the 132 multiprocessors of an H100 or H200


def paged_tree_attention(
    query: torch.Tensor,  # [N, H, D], float16, bfloat16 or float32
    storage: torch.Tensor,  # [2, slots, H_kv, D]: keys and values of one layer, the rows in flight already written
    batch: PagedBatch,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:  # [N, H, D], dtype of query
    """Softmax attention of all packed rows over their prefixes and ancestors.

    `num_splits` is chosen by length and batch when it is not given. Rows that pad the batch are 0.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = storage.shape[2]
    group = num_heads // num_kv_heads
    splits = num_splits or choose_num_splits(batch.max_keys, len(batch.tile_seqs) * num_kv_heads)
    padded_dim = max(_MIN_DOT, triton.next_power_of_2(head_dim))
    key_tile = min(64, max(_MIN_DOT, _KEY_TILE_BYTES // (padded_dim * storage.element_size())))
    query = query if query.stride(2) == 1 else query.contiguous()
    # No tile has the rows that pad a batch, and what they hold goes through the rest of the model.
    make = torch.zeros if batch.is_padded else torch.empty
    output = make((num_rows, num_heads, head_dim), dtype=query.dtype, device=query.device)
    if splits == 1:
        mixed, masses = output, output  # `masses` is not written
    else:
        mixed = torch.empty((splits, num_rows, num_heads, head_dim), dtype=torch.float32, device=query.device)
        masses = torch.empty((splits, num_rows, num_heads), dtype=torch.float32, device=query.device)
    _attend_tile[(len(batch.tile_seqs), num_kv_heads, splits)](
        query,
        storage[0],
        storage[1],
        mixed,
        masses,
        batch.row_starts,
        batch.tail_starts,
        batch.cached_lens,
        batch.block_tables,
        batch.is_chain,
        batch.ancestors,
        batch.query_positions,
        batch.tail_positions,
        batch.tile_seqs,
        batch.tile_rows,
        query.stride(0),
        query.stride(1),
        storage.stride(1),
        storage.stride(2),
        batch.block_tables.shape[1],
        batch.ancestors.shape[1],
        num_rows,
        splits,
        scaling,
        softcap or 0.0,
        sliding_window or 0,
        HAS_SOFTCAP=softcap is not None,
        HAS_WINDOW=sliding_window is not None,
        IS_SPLIT=splits > 1,
        UPCAST=query.device.type == "cpu",  # the interpreter multiplies the bits of bfloat16 as if they were integers
        NUM_HEADS=num_heads,
        GROUP=group,
        TILE_ROWS=batch.rows_per_tile,
        BLOCK_SIZE=batch.block_size,
        HEAD_DIM=head_dim,
        LANES=max(_MIN_DOT, triton.next_power_of_2(batch.rows_per_tile * group)),
        KEYS=key_tile,
        DIM=padded_dim,
        num_warps=8 if padded_dim > 128 else 4,
        num_stages=2,
    )
    if splits > 1:
        merge_splits(mixed, masses, output, batch.row_starts)
    return output


def choose_num_splits(max_keys: int, num_programs: int) -> int:
    """Into how many shares the keys go: enough to fill the device, each worth its launch, none for short prefixes."""
    worthwhile = max_keys // _MIN_KEYS_PER_SPLIT
    return max(1, min(worthwhile, _WANTED_PROGRAMS // num_programs, _MAX_SPLITS))


# Sizes that change from step to step: a kernel for each of their kinds would be compiled in mid-service.
@triton.jit(do_not_specialize=["max_blocks", "num_words", "num_rows", "num_splits"])
def _attend_tile(
    query,
    keys,
    values,
    mixed_out,
    masses_out,
    row_starts,
    tail_starts,
    cached_lens,
    block_tables,
    is_chain,
    ancestors,
    query_positions,
    tail_positions,
    tile_seqs,
    tile_rows,
    stride_query_row,
    stride_query_head,
    stride_slot,
    stride_kv_head,
    max_blocks,
    num_words,
    num_rows,
    num_splits,
    scaling,
    softcap,
    window,
    HAS_SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    LANES: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq = tl.load(tile_seqs + tile)
    if seq < 0:  # a tile that pads its bucket
        return
    first_row = tl.load(tile_rows + tile)
    row_start = tl.load(row_starts + seq)
    asking = tl.load(row_starts + seq + 1) - row_start
    tail_start = tl.load(tail_starts + seq)
    older = tl.load(tail_starts + seq + 1) - tail_start - asking
    cached_len = tl.load(cached_lens + seq)
    chain = tl.load(is_chain + seq)

    lanes = tl.arange(0, LANES)
    features = tl.arange(0, DIM)
    rows = first_row + lanes // GROUP  # within the sequence's asking rows
    heads = kv_head * GROUP + lanes % GROUP
    is_row = (rows < asking) & (lanes < TILE_ROWS * GROUP)
    packed = (row_start + rows).to(tl.int64)
    is_feature = features < HEAD_DIM
    is_element = is_row[:, None] & is_feature[None, :]
    at = packed[:, None] * stride_query_row + heads[:, None] * stride_query_head + features[None, :]
    asked = tl.load(query + at, mask=is_element, other=0.0)  # [LANES, DIM]
    if UPCAST:
        asked = asked.to(tl.float32)
    positions = tl.load(query_positions + packed, mask=is_row, other=0)
    words = ancestors + packed * num_words

    # The blocks of keys this tile visits: the prefix from its window on, then the tail up to its last row.
    prefix_blocks = (cached_len + KEYS - 1) // KEYS
    tail_len = tl.minimum(first_row + TILE_ROWS, asking) + older
    tail_blocks = (tail_len + KEYS - 1) // KEYS
    first_block = prefix_blocks * 0
    if HAS_WINDOW:
        lowest = tl.min(tl.where(is_row, positions, 2147483647), axis=0)
        first_block = tl.minimum(tl.maximum(lowest - window + 1, 0) // KEYS, prefix_blocks)
    num_blocks = prefix_blocks - first_block + tail_blocks
    share = (num_blocks + num_splits - 1) // num_splits
    begin = first_block + tl.minimum(split * share, num_blocks)
    end = first_block + tl.minimum(split * share + share, num_blocks)

    mixed = tl.zeros([LANES, DIM], dtype=tl.float32)
    peak = tl.full([LANES], float("-inf"), dtype=tl.float32)
    mass = tl.zeros([LANES], dtype=tl.float32)
    keys_of_head = keys + kv_head * stride_kv_head
    values_of_head = values + kv_head * stride_kv_head
    table = block_tables + seq * max_blocks
    tail_positions_of_seq = tail_positions + tail_start
    for block in range(begin, tl.minimum(end, prefix_blocks)):
        first = block * KEYS
        limit = cached_len
        mixed, peak, mass = visit_keys(
            mixed, peak, mass, asked, keys_of_head, values_of_head, table, first, limit, cached_len, stride_slot,
            words, rows + older, is_row, chain, positions, tail_positions_of_seq, scaling, softcap, window,
            False, HAS_SOFTCAP, HAS_WINDOW, UPCAST, BLOCK_SIZE, HEAD_DIM, KEYS, DIM,
        )  # fmt: skip
    for block in range(tl.maximum(begin, prefix_blocks), end):
        first = cached_len + (block - prefix_blocks) * KEYS
        limit = cached_len + tail_len
        mixed, peak, mass = visit_keys(
            mixed, peak, mass, asked, keys_of_head, values_of_head, table, first, limit, cached_len, stride_slot,
            words, rows + older, is_row, chain, positions, tail_positions_of_seq, scaling, softcap, window,
            True, HAS_SOFTCAP, HAS_WINDOW, UPCAST, BLOCK_SIZE, HEAD_DIM, KEYS, DIM,
        )  # fmt: skip

    # A share may hold no key that a row sees: it then has mass 0, and its zeros are not divided.
    has_mass = mass > 0
    mixed = mixed / tl.where(has_mass, mass, 1.0)[:, None]
    if IS_SPLIT:
        packed = packed + split.to(tl.int64) * num_rows
        logs = tl.where(has_mass, peak + tl.log2(tl.where(has_mass, mass, 1.0)), float("-inf"))
        tl.store(masses_out + packed * NUM_HEADS + heads, logs, mask=is_row)
    at = (packed[:, None] * NUM_HEADS + heads[:, None]) * HEAD_DIM + features[None, :]
    tl.store(mixed_out + at, mixed.to(mixed_out.dtype.element_ty), mask=is_element)
