"""The packed forward: rows of many sequences, in prefill, plain decoding or as token trees, through the model at once.

    packed rows   | A: prefill chunk       | B: root | C: root, tree nodes      |
    row           | 0   1   2   3   4   5  | 6       | 7    8   9   10  11      |
    parents in seq| -1  0   1   2   3   4  | -1      | -1   0   0   1   1       |

There is one kind of row: it follows its sequence's prefix or an earlier row in flight. Prefill is a chain, plain
decoding a chain of one, a tree a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from specgrove.runtime.attention import PackedPart, PackedStep
from specgrove.runtime.decoder import StateReader
from specgrove.runtime.kv_cache import CachedSequence, KVCache
from specgrove.runtime.paged_forward import PagedForward
from specgrove.runtime.state_tap import RewriteStates

if TYPE_CHECKING:
    from specgrove.runtime.loading import LoadedModel
from specgrove_kernels.backend import KernelSet
from specgrove_kernels.tree_attention import TailMask


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """New rows of one sequence, to be appended after its rows in flight.

    `parents[i]` is the number of a row in flight (older ones of the sequence count, from the last commit), -1 for the
    cached prefix; `positions[i]` the absolute position of the token; `wants_logits[i]` whether its logits come back.
    """

    seq: CachedSequence
    token_ids: Sequence[int]
    positions: Sequence[int]
    parents: Sequence[int]
    wants_logits: Sequence[bool]

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.positions), len(self.parents), len(self.wants_logits)}
        if len(lengths) != 1 or not self.token_ids:
            raise ValueError("token_ids, positions, parents and wants_logits need one entry for each row, at least one")


@dataclass(frozen=True, slots=True)
class RowOutputs:
    """What a forward says of the rows that want logits, in packed order."""

    logits: torch.Tensor  # float32 [W, V]
    states: torch.Tensor  # float [W, P, H]: one part for each layer that was asked for, then the final normalised ones


@dataclass(frozen=True, slots=True)
class _Packed:
    token_ids: torch.Tensor  # int64 [1, N]
    positions: torch.Tensor  # int64 [1, N]
    wanted: torch.Tensor  # int64 [W], packed rows
    step: PackedStep


class PackedForward:
    """Runs packed rows through one model over one cache. One thread at a time."""

    def __init__(self, loaded: LoadedModel, cache: KVCache) -> None:
        self._loaded = loaded
        self._cache = cache
        self._paged = None if loaded.paged is None else PagedForward(loaded, cache, loaded.paged)
        self.num_forwards = 0

    @property
    def kernels(self) -> KernelSet | None:
        """What this model attends with; None for plain torch."""
        return None if self._loaded.paged is None else self._loaded.paged.kernels

    @torch.inference_mode()
    def run(
        self, batch: Sequence[SequenceRows], before_head: RewriteStates | None = None
    ) -> torch.Tensor:  # float32 [rows that want logits, K * V]
        """Logits of the rows that want them, in packed order. Keys and values of all rows are in flight afterwards.

        `before_head` may change these rows' states [K, W, H] before they go into the head. Raises `OutOfBlocks` before
        anything is changed when the cache has no room for a sequence's rows; sequences reserved before it keep their
        (empty) blocks until they are rolled back.
        """
        self._enter(batch)
        if self._paged is not None:
            return self._paged.run(batch, before_head)[0]
        packed = self._pack(batch)
        return self._loaded.logits(packed.token_ids, packed.positions, packed.wanted, packed.step, before_head)

    @torch.inference_mode()
    def run_and_read(self, batch: Sequence[SequenceRows], tap: StateReader, layers: Sequence[int]) -> RowOutputs:
        """As `run`, and the states of the same rows after `layers` and after the final norm."""
        self._enter(batch)
        if self._paged is not None:
            logits, *states = self._paged.run(batch, tap=tap, layers=layers)
            return RowOutputs(logits, torch.stack(states, dim=1))
        packed = self._pack(batch)
        with tap.reading(layers, packed.wanted) as parts:
            logits = self._loaded.logits(packed.token_ids, packed.positions, packed.wanted, packed.step)
        return RowOutputs(logits, torch.stack(parts, dim=1))

    def wait(self) -> None:
        """Until the device has done what was asked of it: for those who time it."""
        if self._loaded.device.type == "cuda":
            torch.cuda.synchronize(self._loaded.device)

    def _enter(self, batch: Sequence[SequenceRows]) -> None:
        """Blocks for all rows, then their places in flight."""
        for rows in batch:
            self._cache.reserve(rows.seq, len(rows.token_ids))
        for rows in batch:
            self._cache.append_rows(rows.seq, rows.parents, rows.positions)
        self.num_forwards += 1

    def _pack(self, batch: Sequence[SequenceRows]) -> _Packed:
        device = self._loaded.device
        parts: list[PackedPart] = []
        token_ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for rows in batch:
            start = len(token_ids)
            parts.append(self._part(rows, start))
            wanted += [start + index for index, wants in enumerate(rows.wants_logits) if wants]
            token_ids += rows.token_ids
            positions += rows.positions
        return _Packed(
            _to_tensor(token_ids, device)[None],
            _to_tensor(positions, device)[None],
            _to_tensor(wanted, device),
            PackedStep(self._cache, tuple(parts)),
        )

    def _part(self, rows: SequenceRows, start: int) -> PackedPart:
        seq, num_new = rows.seq, len(rows.token_ids)
        first = seq.cached_len + seq.num_in_flight - num_new
        return PackedPart(
            start,
            start + num_new,
            self._cache.slots(seq, first, first + num_new),
            self._cache.slots(seq, 0, first + num_new),
            self._mask(seq, num_new),
        )

    def _mask(self, seq: CachedSequence, num_new: int) -> TailMask:
        device = self._loaded.device
        in_flight = seq.num_in_flight
        visible = None
        if in_flight > 1:
            visible = _unpack(seq.ancestors[-num_new:], in_flight).to(device)
            if num_new == 1 and bool(visible.all()):
                visible = None
        if not self._loaded.has_windows:
            return TailMask(visible)
        key_positions = torch.cat([torch.arange(seq.cached_len), torch.tensor(seq.row_positions)])
        return TailMask(visible, key_positions[-num_new:].to(device), key_positions.to(device))


def _to_tensor(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    """int64 [len(numbers)]; through NumPy, which reads a list in half the time."""
    tensor = torch.from_numpy(np.array(numbers, dtype=np.int64))
    return tensor if device.type == "cpu" else tensor.to(device)


def _unpack(bitmasks: Sequence[int], width: int) -> torch.Tensor:
    """bool [len(bitmasks), width] from integers of any size, lowest bit first."""
    num_bytes = (width + 7) // 8
    packed = np.frombuffer(b"".join(mask.to_bytes(num_bytes, "little") for mask in bitmasks), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(bitmasks), num_bytes), axis=1, bitorder="little")
    return torch.from_numpy(bits[:, :width].astype(bool))
