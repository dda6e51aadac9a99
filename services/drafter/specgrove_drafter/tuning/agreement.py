"""How often the SSM is right: the target's greedy choice among its first k, and what trees make of that.

Acceptance of a drafted path is teacher-forced by nature: a node is only looked at when everything above it was right.
So agreement on the target's own text is acceptance, and the mean accepted length of a static tree follows from the
ranks alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specgrove_drafter.tuning.batches import in_order
from specgrove_drafter.tuning.shards import Document, Role
from specgrove_drafter.tuning.vocabulary import DraftVocabulary

MAX_RANK = 5
CHAIN, TREE = (1, 1, 1, 1), (4, 2, 2, 1)
NEVER = 1_000_000


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of answer positions, and mean committed tokens per step of two static trees."""

    num_positions: int
    top: tuple[float, ...]  # [5]: the target's choice is among the first 1, 2, .. 5
    chain_len: float  # expansion <1,1,1,1>, bonus token included
    tree_len: float  # expansion <4,2,2,1>, bonus token included

    def line(self) -> str:
        """One line for a log or a card."""
        shares = " / ".join(f"{100 * share:.1f}" for share in self.top)
        lengths = f"chain of 4: {self.chain_len:.2f}, tree <4,2,2,1>: {self.tree_len:.2f} tokens per step"
        return f"top-1..5 {shares} % of {self.num_positions} positions; {lengths}"


@torch.no_grad()
def measure_agreement(ssm: Any, documents: Sequence[Document], vocabulary: DraftVocabulary) -> Agreement:
    """Agreement at the positions where the target answered."""
    ssm.eval()
    device = next(ssm.parameters()).device
    ranks: list[Tensor] = []
    for batch, members in in_order(documents, vocabulary.to_draft(), 4096):
        logits = ssm(input_ids=batch.tokens.to(device), use_cache=False).logits.float().cpu()
        for row, document in enumerate(members):
            answered = document.roles == Role.ANSWER
            choice = document.top_ids[:, 0].long()[answered]
            ranks.append(choice_ranks(logits[row, : len(document)][answered], choice, vocabulary))
    return summarise(ranks)


def choice_ranks(logits: Tensor, choice: Tensor, vocabulary: DraftVocabulary) -> Tensor:
    """int64 [N]: the place, from 0, of each target token among the SSM's proposals; NEVER if it cannot propose it."""
    draft = vocabulary.to_draft()[choice]
    proposals = logits[:, :-1]
    known = draft != vocabulary.other_id
    own = proposals.gather(1, draft.clamp(max=vocabulary.size - 2)[:, None])
    ranks = (proposals > own).sum(-1)
    return ranks.masked_fill(~known, NEVER)


def summarise(ranks: Sequence[Tensor]) -> Agreement:
    """From the ranks of consecutive answer positions, one tensor a document."""
    joined = torch.cat(list(ranks)) if ranks else torch.zeros(0, dtype=torch.int64)
    count = max(int(joined.numel()), 1)
    top = tuple(float((joined < k).sum()) / count for k in range(1, MAX_RANK + 1))
    return Agreement(int(joined.numel()), top, accepted_len(ranks, CHAIN), accepted_len(ranks, TREE))


def accepted_len(ranks: Sequence[Tensor], widths: Sequence[int]) -> float:
    """Mean committed tokens per step when every step drafts the static tree `widths`."""
    steps = tokens = 0
    for document in ranks:
        places = document.tolist()
        at = 0
        while at < len(places):
            depth = 0
            while depth < len(widths) and at + depth < len(places) - 1 and places[at + depth] < widths[depth]:
                depth += 1
            at += depth + 1
            tokens += depth + 1
            steps += 1
    return tokens / max(steps, 1)
