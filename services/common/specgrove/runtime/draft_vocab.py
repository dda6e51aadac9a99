"""A trimmed draft vocabulary: which target token each draft id stands for, and back.

File `draft_vocab.safetensors` beside the weights holds tensor `d2t` (int64 [V_draft]), offsets as in EAGLE-3
checkpoints: target_id = draft_id + d2t[draft_id]. The config key `draft_vocab_other_id`, if there, names the draft id
that stands for every target token outside: as input those tokens embed as it, as output it collects their mass and is
never proposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from specgrove.errors import ModelLoadError

FILE_NAME = "draft_vocab.safetensors"
OTHER_ID_KEY = "draft_vocab_other_id"


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """`to_target` int64 [V_draft]; `to_draft` int64 [V_target], `other_id` (or 0) for tokens outside."""

    to_target: torch.Tensor
    to_draft: torch.Tensor
    other_id: int | None

    @classmethod
    def from_offsets(cls, offsets: torch.Tensor, target_vocab_size: int, other_id: int | None) -> DraftVocab:
        """Build both maps from EAGLE-3 offsets (int64 [V_draft])."""
        draft_ids = torch.arange(offsets.numel())
        to_target = draft_ids + offsets.to(torch.int64)
        listed = torch.ones_like(draft_ids, dtype=torch.bool)
        if other_id is not None:
            if not 0 <= other_id < offsets.numel():
                raise ModelLoadError(f"{OTHER_ID_KEY} {other_id} is no draft id; there are {offsets.numel()}")
            listed[other_id] = False
        inside = to_target[listed]
        if inside.numel() == 0 or inside.min() < 0 or inside.max() >= target_vocab_size:
            raise ModelLoadError(f"d2t points outside the target's vocabulary of {target_vocab_size} tokens")
        if inside.unique().numel() != inside.numel():
            raise ModelLoadError("d2t maps two draft ids to one target token")
        to_draft = torch.full((target_vocab_size,), other_id or 0, dtype=torch.int64)
        to_draft[inside] = draft_ids[listed]
        return cls(to_target, to_draft, other_id)

    @classmethod
    def load(cls, folder: Path, target_vocab_size: int, other_id: int | None) -> DraftVocab | None:
        """The map that lies in `folder`, or None when the model uses the target's vocabulary."""
        path = folder / FILE_NAME
        if not path.is_file():
            return None
        tensors = load_file(path)
        if "d2t" not in tensors:
            raise ModelLoadError(f"{path.name} in {folder} has no tensor d2t")
        return cls.from_offsets(tensors["d2t"], target_vocab_size, other_id)
