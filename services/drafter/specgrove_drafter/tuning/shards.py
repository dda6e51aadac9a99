"""What the target said, on disk: documents with its own next-token law, in shards that survive an interruption.

    work-dir/shards/shard-00007.safetensors     documents 7*32 .. 7*32+31, back to back
        lengths        int32  [documents]
        tokens         int32  [T]
        roles          uint8  [T]          who chose the token *after* this one (see Role)
        top_ids        int32  [T, 16]      the target's likeliest next tokens, likeliest first
        top_logprobs   float16 [T, 16]     their log-probabilities at temperature 1
        states         float16 [T, hidden] the target's final normalised states, the ridge fit's goal
        features       float16 [T, F]      its states after inner layers, each scaled to a root mean square of 1

A shard is written beside and renamed, so a file that exists is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

NUM_TOP = 16
SHARD_DOCUMENTS = 32


class Role(IntEnum):
    """Who chose the token that follows a position."""

    UNSEEN = 0  # the chat template, run in bulk: no next-token law was kept here
    FORCED = 1  # the chat template or a seed; the law was kept
    USER = 2  # the target writing the user's turn
    ANSWER = 3  # the target answering


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation; every tensor has T rows, as in the module's drawing."""

    document_id: int
    tokens: Tensor
    roles: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    states: Tensor
    features: Tensor

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


_ROW_FIELDS = ("tokens", "roles", "top_ids", "top_logprobs", "states", "features")


def shard_path(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard:05d}.safetensors"


def shards_on_disk(folder: Path) -> list[int]:
    """Numbers of the finished shards, ascending."""
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("shard-*.safetensors"))


def write_shard(folder: Path, shard: int, documents: list[Document]) -> int:
    """Write one shard atomically; returns its number of tokens."""
    ordered = sorted(documents, key=lambda document: document.document_id)
    tensors = {name: torch.cat([getattr(document, name) for document in ordered]) for name in _ROW_FIELDS}
    tensors["lengths"] = torch.tensor([len(document) for document in ordered], dtype=torch.int32)
    tensors["document_ids"] = torch.tensor([document.document_id for document in ordered], dtype=torch.int32)
    target = shard_path(folder, shard)
    beside = target.with_suffix(".partial")
    save_file(tensors, beside)
    beside.replace(target)
    return int(tensors["tokens"].shape[0])


def read_shard(folder: Path, shard: int) -> list[Document]:
    """The documents of one shard, in order of their ids."""
    tensors = load_file(shard_path(folder, shard))
    lengths = tensors["lengths"].tolist()
    columns = [tensors[name].split(lengths) for name in _ROW_FIELDS]
    ids = tensors["document_ids"].tolist()
    return [Document(document_id, *rows) for document_id, *rows in zip(ids, *columns, strict=True)]


def num_tokens_on_disk(folder: Path) -> int:
    """Tokens in all finished shards; reads their headers only."""
    total = 0
    for shard in shards_on_disk(folder):
        with safe_open(shard_path(folder, shard), framework="pt") as opened:
            total += int(opened.get_slice("tokens").get_shape()[0])
    return total


def read_documents(folder: Path) -> Iterator[Document]:
    """All finished documents, shard by shard, so that one shard at a time is in memory."""
    for shard in shards_on_disk(folder):
        yield from read_shard(folder, shard)
