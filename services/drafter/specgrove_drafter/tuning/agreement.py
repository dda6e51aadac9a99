"""How often the SSM is right: the target's greedy choice among its first k, and what trees make of that.

Acceptance of a drafted path is teacher-forced by nature: a node is only looked at when everything above it was right.
So agreement on the target's own text is acceptance, and the mean accepted length of a static tree follows from the
ranks alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specgrove_drafter.tuning.batches import in_order
from specgrove_drafter.tuning.depth_head import DepthHead
from specgrove_drafter.tuning.shards import Document, Role
from specgrove_drafter.tuning.vocabulary import DraftVocabulary

MAX_RANK = 5
CHAIN, TREE = (1, 1, 1, 1), (4, 2, 2, 1)
NEVER = 1_000_000


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of answer positions, and mean committed tokens per step of static trees, bonus token included."""

    num_positions: int
    top: tuple[float, ...]  # [5]: the target's choice is among the first 1, 2, .. 5 of the states alone
    top_by_depth: tuple[tuple[float, ...], ...]  # [D][5]: the same with the features of draft depth 1, 2, .. D
    chain_len: float  # expansion <1,1,1,1>
    tree_len: float  # expansion <4,2,2,1>

    def line(self) -> str:
        """One line for a log."""
        lengths = f"chain of 4: {self.chain_len:.2f}, tree <4,2,2,1>: {self.tree_len:.2f} tokens per step"
        fed = "".join(f", depth {d} {_ends(top)}" for d, top in enumerate(self.top_by_depth, start=1))
        return f"top 1/5: states alone {_ends(self.top)}{fed} % of {self.num_positions} positions; {lengths}"


def _ends(top: Sequence[float]) -> str:
    return f"{100 * top[0]:.1f}/{100 * top[-1]:.1f}"


@torch.no_grad()
def measure_agreement(ssms: Sequence[Any], documents: Sequence[Document], vocabulary: DraftVocabulary) -> Agreement:
    """Agreement of the mean of the SSMs' laws at the positions where the target answered."""
    return summarise(answer_ranks(ssms, documents, vocabulary))


@torch.no_grad()
def answer_ranks(ssms: Sequence[Any], documents: Sequence[Document], vocabulary: DraftVocabulary) -> list[Tensor]:
    """For each document int64 [D + 1, answer positions]: the rank of the target's choice in the mean of the SSMs' laws
    without features and at each draft depth with them (without them where none were kept)."""
    for ssm in ssms:
        ssm.eval()
    num_depths = max(ssm.lm_head.num_depths for ssm in ssms)
    device = next(ssms[0].parameters()).device
    ranks: list[Tensor] = []
    for batch, members in in_order(documents, vocabulary.to_draft(), 4096):
        on_device = batch.to(device)
        states = [ssm.model(input_ids=on_device.tokens, use_cache=False).last_hidden_state for ssm in ssms]
        shifted = [on_device.features_before(depth) for depth in range(1, num_depths + 1)]
        for row, document in enumerate(members):
            answered = (document.roles == Role.ANSWER).nonzero().flatten().to(device)
            choice = document.top_ids[:, 0].long().to(device)[answered]
            own = [each[row][answered] for each in states]
            rows = [choice_ranks(_mean_logits(ssms, own, None, 0), choice, vocabulary)]
            for depth, (before, known) in enumerate(shifted, start=1):
                features = before[row][answered].float()
                fed = choice_ranks(_mean_logits(ssms, own, features, depth), choice, vocabulary)
                rows.append(torch.where(known[row][answered], fed, rows[0]))
            ranks.append(torch.stack(rows).cpu())
    return ranks


def _mean_logits(ssms: Sequence[Any], states: Sequence[Tensor], features: Tensor | None, depth: int) -> Tensor:
    """[N, V]; an SSM without maps for this depth reads its states alone."""
    logits = []
    for ssm, own in zip(ssms, states, strict=True):
        head: DepthHead = ssm.lm_head
        logits.append(head.read(head.guess(own, features, depth if depth <= head.num_depths else 0)))
    return log_mean_law(logits)


def log_mean_law(logits: Sequence[Tensor]) -> Tensor:
    """[N, V]: the log of the mean of the laws that each SSM's logits [N, V] stand for; what a pool proposes from."""
    if len(logits) == 1:
        return logits[0]  # the same order, without a pass over the vocabulary
    laws = torch.stack([each.log_softmax(-1) for each in logits])
    return laws.logsumexp(0) - math.log(len(logits))


def choice_ranks(logits: Tensor, choice: Tensor, vocabulary: DraftVocabulary) -> Tensor:
    """int64 [N]: the place, from 0, of each target token among the SSM's proposals; NEVER if it cannot propose it."""
    draft = vocabulary.to_draft().to(logits.device)[choice]
    proposals = logits[:, :-1]
    known = draft != vocabulary.other_id
    own = proposals.gather(1, draft.clamp(max=vocabulary.size - 2)[:, None])
    ranks = (proposals > own).sum(-1)
    return ranks.masked_fill(~known, NEVER)


def summarise(ranks: Sequence[Tensor]) -> Agreement:
    """From `answer_ranks`."""
    joined = torch.cat(list(ranks), dim=1) if ranks else torch.zeros(1, 0, dtype=torch.int64)
    count = max(joined.shape[1], 1)
    alone, *by_depth = (tuple(float((row < k).sum()) / count for k in range(1, MAX_RANK + 1)) for row in joined)
    return Agreement(joined.shape[1], alone, tuple(by_depth), accepted_len(ranks, CHAIN), accepted_len(ranks, TREE))


def accepted_len(ranks: Sequence[Tensor], widths: Sequence[int]) -> float:
    """Mean committed tokens per step when every step drafts the static tree `widths`; `ranks` as in `answer_ranks`."""
    steps = tokens = 0
    for document in ranks:
        by_depth = [document[depth if depth < len(document) else 0].tolist() for depth in range(1, len(widths) + 1)]
        length = document.shape[1]
        at = 0
        while at < length:
            depth = 0
            while depth < len(widths) and at + depth < length - 1 and by_depth[depth][at + depth] < widths[depth]:
                depth += 1
            at += depth + 1
            tokens += depth + 1
            steps += 1
    return tokens / max(steps, 1)
