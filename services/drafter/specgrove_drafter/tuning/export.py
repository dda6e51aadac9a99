"""The finished SSM as a folder: an ordinary Hugging Face model, and beside it what only a drafter reads.

config.json                 the target's architecture, `draft_vocab_other_id`, with maps `target_feature_layers`
model.safetensors           float16; or int8 with a scale a row (`--stored int8`, see specgrove.runtime.int8_weights)
draft_vocab.safetensors     d2t int64 [V]: target_id = draft_id + d2t[draft_id], as in EAGLE-3 checkpoints
feature_maps.safetensors    at draft depth d the logits are head_rows @ (state_maps[d - 1], feature_maps[d - 1]) of the
                            last states and the features; without features head_rows @ token_map of the last states
README.md                   the model card

In float16 anyone loads it with AutoModelForCausalLM: without the maps it is the SSM that reads its own states only. In
int8, which needs specgrove's loader anyway, the head is `head_rows` itself, and where it shares its rows with the
embedding (a tied target, fixed tables) they are written once. Rejected (2026-11-30): maps that lead into the multiplied
out head, so that no second table is needed. They hold the inverse of the token map, whose condition number is 6e4: in
int8 the logits were off by twice their own size, where the maps as trained are off by 2%.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specgrove.runtime.int8_weights import (
    HEAD_NAME,
    LAST_HEAD_ROW,
    QUANTIZATION_CONFIG,
    SCALE_SUFFIX,
    quantize_rows,
)
from specgrove_drafter.tuning.depth_head import DepthHead, plain_state
from specgrove_drafter.tuning.hub import build_small
from specgrove_drafter.tuning.vocabulary import DraftVocabulary

VOCAB_FILE = "draft_vocab.safetensors"
MAPS_FILE = "feature_maps.safetensors"
MODEL_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Storage:
    """How an SSM is written."""

    is_int8: bool
    feature_layers: Sequence[int]  # of the target
    unknown_id: int  # the target's id that the last draft id leads to


def export_ssm(ssm: Any, vocabulary: DraftVocabulary, card: str, folder: Path, storage: Storage) -> int:
    """Write the folder beside its place and swap it in; returns its size in bytes."""
    beside = folder.with_name(folder.name + ".partial")
    if beside.exists():
        shutil.rmtree(beside)
    beside.mkdir(parents=True)
    half_precision_copy(ssm, storage).save_pretrained(beside)
    head: DepthHead = ssm.lm_head
    if head.num_depths:
        _write_maps(head, beside / MAPS_FILE, is_int8=storage.is_int8)
    if storage.is_int8:
        _quantize(beside, head, ssm.model.embed_tokens.weight.detach().cpu())
    save_file({"d2t": vocabulary.offsets(storage.unknown_id)}, beside / VOCAB_FILE, metadata={"format": "pt"})
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


def half_precision_copy(ssm: Any, storage: Storage) -> Any:
    """The SSM in float16 as an ordinary model, itself untouched."""
    config = ssm.config
    extra: dict[str, Any] = {"draft_vocab_other_id": config.draft_vocab_other_id}
    if ssm.lm_head.num_depths:
        extra |= {"target_feature_layers": list(storage.feature_layers), "target_hidden_size": config.hidden_size}
    copy = build_small(
        config, num_layers=config.num_hidden_layers, vocab_size=config.vocab_size, token_ids={}, extra=extra
    )
    copy.load_state_dict(plain_state(ssm))
    copy.half()
    copy.config.dtype = torch.float16
    return copy


def _quantize(folder: Path, head: DepthHead, embedding: Tensor) -> None:
    """Rewrite the model file of `folder` with int8 matrices, and say so in its config."""
    tensors = load_file(folder / MODEL_FILE)
    if head.num_depths:
        table = head.table.detach().cpu()
        if torch.equal(table[:-1], embedding[:-1]):
            del tensors[HEAD_NAME]
            tensors[LAST_HEAD_ROW] = table[-1:].half()
        else:
            tensors[HEAD_NAME] = table
    for name in [name for name, tensor in tensors.items() if tensor.dim() == 2 and name != LAST_HEAD_ROW]:
        tensors[name], tensors[name + SCALE_SUFFIX] = quantize_rows(tensors[name])
    save_file(tensors, folder / MODEL_FILE, metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"quantization_config": dict(QUANTIZATION_CONFIG)}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _write_maps(head: DepthHead, path: Path, *, is_int8: bool) -> None:
    maps = {name: getattr(head, name).detach().cpu() for name in ("token_map", "state_maps", "feature_maps")}
    tensors: dict[str, Tensor] = {}
    for name, tensor in maps.items():
        if is_int8:
            tensors[name], tensors[name + SCALE_SUFFIX] = quantize_rows(tensor)
        else:
            tensors[name] = tensor.half()
    if not is_int8:
        tensors["head_rows"] = head.table.detach().cpu().half()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def read_offsets(folder: Path) -> Tensor:
    """`d2t` of an exported folder, int64 [V]."""
    return load_file(folder / VOCAB_FILE)["d2t"]
