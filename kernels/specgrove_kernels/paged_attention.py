"""Paged tree attention of a packed batch in plain torch: one sequence after the other, through the reference of one.

`paged_attention_triton` does the same in one launch (two with split prefixes) and must equal this at every size.
"""

from __future__ import annotations

import torch

from specgrove_kernels.paged_batch import WORD_BITS, PagedBatch, slots_of
from specgrove_kernels.tree_attention import TailMask, tree_attention_reference


def paged_tree_attention(
    query: torch.Tensor,  # [N, H, D]
    storage: torch.Tensor,  # [2, slots, H_kv, D]: keys and values of one layer, the rows in flight already written
    batch: PagedBatch,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:  # [N, H, D], dtype of query
    """Softmax attention of all packed rows over their prefixes and ancestors; `tree_attention_reference` says how.

    Rows that pad the batch are 0.
    """
    output = torch.zeros_like(query)  # rows after the last sequence's pad a batch
    for number in range(batch.num_sequences):
        start, stop = batch.row_starts[number : number + 2].tolist()
        if start == stop:
            continue
        mask = _tail_mask(batch, number, has_window=sliding_window is not None)
        first, last = batch.tail_starts[number : number + 2].tolist()
        places = torch.arange(int(batch.cached_lens[number]) + last - first, device=query.device)
        slots = slots_of(batch.block_tables[number], places, batch.block_size)
        output[start:stop] = tree_attention_reference(
            query[start:stop].contiguous(),
            storage[0, slots],
            storage[1, slots],
            mask,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
        )
    return output


def _tail_mask(batch: PagedBatch, number: int, *, has_window: bool) -> TailMask:
    start, stop = batch.row_starts[number : number + 2].tolist()
    first, last = batch.tail_starts[number : number + 2].tolist()
    tail = torch.arange(last - first, device=batch.ancestors.device)
    if batch.is_chain[number]:
        own = tail[len(tail) - (stop - start) :]
        visible = tail[None, :] <= own[:, None]
    else:
        words = batch.ancestors[start:stop][:, tail // WORD_BITS]
        visible = (words >> (tail % WORD_BITS)) & 1 != 0
    if not has_window:
        return TailMask(visible)
    prefix = torch.arange(int(batch.cached_lens[number]), device=tail.device)
    positions = batch.tail_positions[first:last].long()
    return TailMask(visible, batch.query_positions[start:stop].long(), torch.cat([prefix, positions]))
