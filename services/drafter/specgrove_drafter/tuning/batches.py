"""Documents as rectangles: every row is one document from position 0, so nothing attends across documents.

Rows are right-padded. Causal attention never looks right, so padding needs no mask; it is merely left out of losses.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from specgrove.runtime.features import unit_rms
from specgrove_drafter.tuning.shards import Document, Role

HELD_OUT_EVERY = 32
KeptPositions = Mapping[int, Tensor]  # document id -> bool [T]


@dataclass(frozen=True, slots=True)
class Batch:
    """A rectangle of documents; `seen` says at which positions the target's law was kept, `kept` which count."""

    tokens: Tensor  # int64 [B, L], draft ids
    roles: Tensor  # uint8 [B, L]
    top_ids: Tensor  # int64 [B, L, 16], target ids
    top_logprobs: Tensor  # float32 [B, L, 16]
    features: Tensor  # float16 [B, L, F], the final states' part included
    kept: Tensor  # bool [B, L], False where an earlier SSM of the pool is right already

    @property
    def seen(self) -> Tensor:
        """bool [B, L]"""
        return self.roles != Role.UNSEEN

    @property
    def num_tokens(self) -> int:
        return int(self.tokens.numel())

    def to(self, device: torch.device) -> Batch:
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))

    def features_before(self, depth: int) -> tuple[Tensor, Tensor]:
        """The features `depth` rows further up, [B, L, F], and bool [B, L] where they were kept."""
        shifted = torch.zeros_like(self.features)
        shifted[:, depth:] = self.features[:, :-depth]
        known = torch.zeros_like(self.kept)
        known[:, depth:] = self.seen[:, :-depth]
        return shifted, known


def is_held_out(document: Document) -> bool:
    """One document in 32 is never trained on."""
    return document.document_id % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


def collate(documents: Sequence[Document], to_draft: Tensor, kept: KeptPositions | None = None) -> Batch:
    """Right-pad documents into one batch; `to_draft` is int64 [target vocabulary]; no `kept` means every position."""

    def padded(rows: Sequence[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)

    def column(name: str) -> Tensor:
        return padded([getattr(document, name) for document in documents])

    roles = column("roles")
    return Batch(
        tokens=to_draft[column("tokens").long()],
        roles=roles,
        top_ids=column("top_ids").long(),
        top_logprobs=column("top_logprobs").float(),
        features=torch.cat([column("features"), unit_rms(column("states")).half()], dim=-1),
        kept=torch.ones_like(roles, dtype=torch.bool)
        if kept is None
        else padded([kept[document.document_id] for document in documents]),
    )


def epoch_batches(lengths: Sequence[int], batch_tokens: int, chance: random.Random) -> list[list[int]]:
    """One epoch's batches of document numbers: each about `batch_tokens` long, alike in length, in random order.

    Documents are shuffled, sorted by length within pools of 256, and cut: little is padding, and every epoch is new.
    """
    order = list(range(len(lengths)))
    chance.shuffle(order)
    batches: list[list[int]] = []
    for start in range(0, len(order), 256):
        batch: list[int] = []
        for number in sorted(order[start : start + 256], key=lambda number: lengths[number]):
            if batch and (len(batch) + 1) * lengths[number] > batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(number)
        batches.append(batch)
    chance.shuffle(batches)
    return batches


def in_order(
    documents: Sequence[Document], to_draft: Tensor, batch_tokens: int, kept: KeptPositions | None = None
) -> Iterator[tuple[Batch, list[Document]]]:
    """Every document once, in batches of similar lengths, without chance."""
    ordered = sorted(documents, key=len)
    batch: list[Document] = []
    for document in ordered:
        if batch and (len(batch) + 1) * len(document) > batch_tokens:
            yield collate(batch, to_draft, kept), batch
            batch = []
        batch.append(document)
    if batch:
        yield collate(batch, to_draft, kept), batch
