"""The map between a trimmed draft vocabulary and the target's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specgrove.errors import ModelLoadError
from specgrove.runtime.draft_vocab import DraftVocab

TARGETS = torch.tensor([0, 3, 4, 9])  # what draft ids 0..3 stand for


def _offsets(targets: torch.Tensor) -> torch.Tensor:
    return targets - torch.arange(targets.numel())


def test_offsets_are_read_as_eagle_checkpoints_write_them() -> None:
    vocab = DraftVocab.from_offsets(_offsets(TARGETS), 12, None)
    assert vocab.to_target.tolist() == TARGETS.tolist()
    assert vocab.to_draft[TARGETS].tolist() == [0, 1, 2, 3]


def test_tokens_outside_become_the_other_id() -> None:
    vocab = DraftVocab.from_offsets(_offsets(torch.tensor([0, 3, 4, 9, 0])), 12, other_id=4)
    assert vocab.to_draft.tolist() == [0, 4, 4, 1, 2, 4, 4, 4, 4, 3, 4, 4]
    assert vocab.other_id == 4


@pytest.mark.parametrize(
    ("targets", "other_id", "complaint"),
    [
        ([0, 3, 12], None, "outside the target's vocabulary of 12"),
        ([0, -1], None, "outside the target's vocabulary"),
        ([0, 3, 3], None, "two draft ids to one"),
        ([0], 0, "outside the target's vocabulary"),
        ([0, 3], 2, "draft_vocab_other_id"),
        ([0, 3], -1, "draft_vocab_other_id"),
    ],
)
def test_a_map_that_is_none_is_refused(targets: list[int], other_id: int | None, complaint: str) -> None:
    with pytest.raises(ModelLoadError, match=complaint):
        DraftVocab.from_offsets(_offsets(torch.tensor(targets)), 12, other_id)


def test_a_folder_without_the_file_has_no_map(tmp_path: Path) -> None:
    assert DraftVocab.load(tmp_path, 12, None) is None


def test_a_file_without_the_tensor_is_refused(tmp_path: Path) -> None:
    save_file({"t2d": torch.zeros(2)}, tmp_path / "draft_vocab.safetensors")
    with pytest.raises(ModelLoadError, match="no tensor d2t"):
        DraftVocab.load(tmp_path, 12, None)


def test_the_file_is_read(tmp_path: Path) -> None:
    save_file({"d2t": _offsets(TARGETS)}, tmp_path / "draft_vocab.safetensors")
    vocab = DraftVocab.load(tmp_path, 12, None)
    assert vocab is not None
    assert vocab.to_target.tolist() == TARGETS.tolist()
