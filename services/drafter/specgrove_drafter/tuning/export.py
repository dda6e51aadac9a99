"""The finished SSM as an ordinary Hugging Face folder: anyone loads it with AutoModelForCausalLM.

config.json               LlamaForCausalLM, plus `draft_vocab_other_id`
model.safetensors         float16
draft_vocab.safetensors   d2t int64 [V]: target_id = draft_id + d2t[draft_id], as in EAGLE-3 checkpoints
README.md                 the model card
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specgrove_drafter.tuning.folded_head import plain_state
from specgrove_drafter.tuning.hub import build_llama
from specgrove_drafter.tuning.vocabulary import DraftVocabulary

VOCAB_FILE = "draft_vocab.safetensors"


def export_ssm(ssm: Any, vocabulary: DraftVocabulary, card: str, folder: Path, unknown_id: int) -> int:
    """Write the folder beside its place and swap it in; returns its size in bytes."""
    beside = folder.with_name(folder.name + ".partial")
    if beside.exists():
        shutil.rmtree(beside)
    beside.mkdir(parents=True)
    half = half_precision_copy(ssm)
    half.save_pretrained(beside)
    save_file({"d2t": vocabulary.offsets(unknown_id)}, beside / VOCAB_FILE, metadata={"format": "pt"})
    (beside / "README.md").write_text(card, encoding="utf-8")
    for path in beside.iterdir():
        path.chmod(0o644)  # safetensors writes for its owner only, and a service runs as someone else
    size = sum(path.stat().st_size for path in beside.iterdir())
    previous = folder.with_name(folder.name + ".previous")
    if folder.exists():
        folder.rename(previous)
    beside.rename(folder)
    if previous.exists():
        shutil.rmtree(previous)
    return size


def half_precision_copy(ssm: Any) -> Any:
    """The SSM in float16, itself untouched."""
    config = ssm.config
    copy = build_llama(
        config,
        num_layers=config.num_hidden_layers,
        vocab_size=config.vocab_size,
        token_ids={},
        extra={"draft_vocab_other_id": config.draft_vocab_other_id},
    )
    copy.load_state_dict(plain_state(ssm))
    copy.half()
    copy.config.dtype = torch.float16
    return copy


def read_offsets(folder: Path) -> Tensor:
    """`d2t` of an exported folder, int64 [V]."""
    return load_file(folder / VOCAB_FILE)["d2t"]
