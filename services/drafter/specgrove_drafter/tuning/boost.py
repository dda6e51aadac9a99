"""Collective boost-tuning: each SSM of the pool is tuned for what the ones before it lack.

    drop       all positions ──tune──▶ SSM 1 ──┐ drop what it has among its first k
                                               ▼
                                  the rest ──tune──▶ SSM 2 ──▶ ...

    mixture    all positions ──tune──▶ SSM 1 ──┐ its law, fixed
                                               ▼
               all positions ──tune──▶ SSM 2, so that the mean of both laws is the target's ──▶ ...

`drop` is SpecInfer's, section 3. Differs from the paper: it drops whole prompts on which SSM and target agree; here
single positions are dropped, because over a hundred tokens the two hardly ever agree everywhere. The text is still read
from its start, so a position that is kept sees the same context as when drafting.

`mixture` is for a pool that proposes from the mean of its laws (`log_mean_law`): each SSM gets its gradient where that
mean is still wrong (`objective.py`), and no position is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specgrove_drafter.tuning.agreement import MAX_RANK, choice_ranks
from specgrove_drafter.tuning.batches import KeptPositions, in_order
from specgrove_drafter.tuning.depth_head import DepthHead
from specgrove_drafter.tuning.hub import has_fast_bfloat16
from specgrove_drafter.tuning.shards import Document
from specgrove_drafter.tuning.vocabulary import DraftVocabulary


@torch.no_grad()
def positions_left(
    ssm: Any,
    documents: Sequence[Document],
    vocabulary: DraftVocabulary,
    covered_top: int,
    before: KeptPositions | None = None,
) -> dict[int, Tensor]:
    """Document id -> bool [T]: where the target's choice is not among the SSM's first `covered_top`.

    `before` are the positions that earlier SSMs of the pool left; others stay dropped.
    """
    ssm.eval()
    head: DepthHead = ssm.lm_head
    device = next(ssm.parameters()).device
    left: dict[int, Tensor] = {}
    for batch, members in in_order(documents, vocabulary.to_draft(), 4096):
        on_device = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=has_fast_bfloat16(device)):
            states = ssm.model(input_ids=on_device.tokens, use_cache=False).last_hidden_state
            covered = _is_covered(head, states, on_device, vocabulary, covered_top)
        for row, document in enumerate(members):
            kept = ~covered[row, : len(document)].cpu()
            left[document.document_id] = kept if before is None else kept & before[document.document_id]
    return left


def _is_covered(head: DepthHead, states: Tensor, batch: Any, vocabulary: DraftVocabulary, covered_top: int) -> Tensor:
    """bool [B, L], at the depth that drafting uses most."""
    seen = batch.seen
    places = seen.flatten().nonzero().flatten()
    flat = states.flatten(0, 1)[places]
    depth = min(head.num_depths, 1)
    features = batch.features_before(1)[0].flatten(0, 1)[places].to(flat.dtype) if depth else None
    choice = batch.top_ids[..., 0].flatten()[places]
    ranks = choice_ranks(head.read(head.guess(flat, features, depth)).float(), choice, vocabulary)
    covered = torch.zeros(seen.numel(), dtype=torch.bool, device=seen.device)
    covered[places] = ranks < covered_top
    return covered.view(seen.shape)


def any_top(by_ssm: Sequence[Sequence[Tensor]]) -> tuple[float, ...]:
    """[5]: `pool_coverage` by the first 1, 2, .. 5."""
    return tuple(pool_coverage(by_ssm, num_choices) for num_choices in range(1, MAX_RANK + 1))


def pool_coverage(by_ssm: Sequence[Sequence[Tensor]], num_choices: int) -> float:
    """The share of positions that some SSM has among its first `num_choices`, at depth 1 (0 without features).

    `by_ssm[i]` are the ranks of SSM i, one int64 [D + 1, positions] a document, as `answer_ranks` gives them.
    """
    found = total = 0
    for ranks in zip(*by_ssm, strict=True):
        best = torch.stack([document[min(len(document) - 1, 1)] for document in ranks]).amin(0)
        found += int((best < num_choices).sum())
        total += int(best.numel())
    return found / max(total, 1)
