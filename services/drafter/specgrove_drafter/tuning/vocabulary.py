"""The trimmed vocabulary of an SSM: the target's tokens that its own text is made of, and one class for the rest.

    draft id   0 .. V-2   one target token each, in ascending order of target ids
    draft id   V-1        "any other token": as input the mean of the others, as output their joint mass

A small vocabulary makes the SSM's head, its largest matrix by far, several times cheaper, and the tokens left out are
ones that the target hardly ever says. On disk the map is EAGLE-3's: `d2t[draft_id] = target_id - draft_id`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from specgrove_drafter.tuning.shards import Document, Role


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Which target token each draft id stands for."""

    target_ids: Tensor  # int64 [V - 1], ascending
    target_vocab_size: int

    def __post_init__(self) -> None:
        ids = self.target_ids
        if ids.numel() and (int(ids[0]) < 0 or int(ids[-1]) >= self.target_vocab_size or bool((ids.diff() <= 0).any())):
            raise ValueError("target_ids must ascend strictly inside the target's vocabulary")

    @property
    def size(self) -> int:
        return int(self.target_ids.numel()) + 1

    @property
    def other_id(self) -> int:
        return self.size - 1

    def to_draft(self) -> Tensor:
        """int64 [target vocabulary]: the draft id of every target token."""
        table = torch.full((self.target_vocab_size,), self.other_id, dtype=torch.int64)
        table[self.target_ids] = torch.arange(self.target_ids.numel())
        return table

    def offsets(self, unknown_id: int = 0) -> Tensor:
        """int64 [V], EAGLE-3's `d2t`; the last entry leads to `unknown_id` and is never proposed."""
        return torch.cat([self.target_ids, torch.tensor([unknown_id])]) - torch.arange(self.size)

    @classmethod
    def from_offsets(cls, offsets: Tensor, target_vocab_size: int) -> DraftVocabulary:
        """The inverse of `offsets`."""
        return cls((offsets + torch.arange(offsets.numel()))[:-1], target_vocab_size)


def choose_vocabulary(
    documents: Iterable[Document], size: int, target_vocab_size: int, always: Iterable[int]
) -> tuple[DraftVocabulary, float]:
    """The `size - 1` tokens the target says most, and the share of its own choices that they cover.

    A token counts by its probability wherever the target weighed it, which ranks rare tokens by more than the luck of
    having been drawn. `always` (template and end tokens) are in whatever their count.
    """
    score = torch.zeros(target_vocab_size, dtype=torch.float64)
    said = torch.zeros(target_vocab_size, dtype=torch.float64)
    for document in documents:
        heard = document.roles >= Role.USER
        law = document.top_logprobs[heard].double().exp()
        score.index_add_(0, document.top_ids[heard].long().flatten(), law.flatten())
        said.index_add_(0, document.top_ids[heard][:, 0].long(), torch.ones(int(heard.sum()), dtype=torch.float64))
    # Low ids are the early, frequent merges of a BPE vocabulary: the better guess among tokens never seen.
    score -= torch.arange(target_vocab_size, dtype=torch.float64) * 1e-12
    score[torch.tensor(sorted(set(always)), dtype=torch.int64)] = float("inf")
    chosen = score.topk(min(size - 1, target_vocab_size)).indices.sort().values
    covered = float(said[chosen].sum() / said.sum().clamp(min=1))
    return DraftVocabulary(chosen, target_vocab_size), covered
