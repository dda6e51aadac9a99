"""A verification step by the runtime's own path: `PackedForward`, the cache's commit, choice and walk by the kernels.

The counterpart of `llama_step.StepStand`, which calls the kernels by hand: the difference is what the runtime adds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.loading import LoadedModel
from specgrove_bench.gpu_check.acceptance import SyntheticAcceptance, tree_tokens
from specgrove_bench.gpu_check.cases import Rows
from specgrove_kernels.backend import KernelSet
from specgrove_kernels.staging import stage

_TEMPERATURE = 0.7


class RuntimeStand:
    """Sequences with random prefixes in the runtime's cache; every step starts from the same prefixes."""

    def __init__(
        self,
        loaded: LoadedModel,  # attending by `kernels`
        kernels: KernelSet,
        *,
        prefixes: Sequence[int],
        parents: Sequence[int],  # of each sequence's tree; a root alone is plain decoding
        acceptance: SyntheticAcceptance,
    ) -> None:
        self._kernels = kernels
        self._device = loaded.device
        self._rows = Rows(0, tuple(parents), len(parents))
        self._tokens = tree_tokens(parents)
        self._acceptance = acceptance
        self._prefixes = tuple(prefixes)
        self._draw = random.Random(0)
        block_size = 16
        self._cache = loaded.new_cache(
            max_tokens=sum(prefix + len(parents) + block_size for prefix in prefixes), block_size=block_size
        )
        self._cache.storage.normal_()
        self._forward = PackedForward(loaded, self._cache)
        self._seqs = [self._cache.new_sequence() for _ in prefixes]
        for seq, prefix in zip(self._seqs, prefixes, strict=True):
            self._cache.reserve(seq, prefix)
            seq.cached_len = prefix
        self.num_steps = 0
        self.num_committed = 0

    def step(self) -> list[int]:
        """One step of all sequences; the number of tokens that each accepts."""
        logits = self._forward.run([self._sequence_rows(number) for number in range(len(self._seqs))])
        counts = []
        for seq, path in zip(self._seqs, self._accepted(logits), strict=True):
            self._cache.commit(seq, [0, *path])
            counts.append(len(path))
        if self._cache.moves is not None:
            self._cache.moves.flush()
        for seq, prefix in zip(self._seqs, self._prefixes, strict=True):
            self._cache.truncate(seq, prefix)
        self.num_steps += 1
        self.num_committed += sum(counts) + len(counts)
        return counts

    def _sequence_rows(self, number: int) -> SequenceRows:
        prefix, num_rows = self._prefixes[number], len(self._tokens)
        positions = [prefix + depth for depth in self._rows.depths]
        return SequenceRows(self._seqs[number], self._tokens, positions, self._rows.parents, [True] * num_rows)

    def _accepted(self, logits: torch.Tensor) -> list[list[int]]:
        """The kernels choose as they would; what random weights chose then gives way to the synthetic choices."""
        parents, num_seqs, num_rows = self._rows.parents, len(self._seqs), len(self._tokens)
        wanted = [c for _ in self._seqs for c in self._acceptance.choices(self._tokens, parents, self._draw)]
        arrays: list[np.ndarray] = [
            np.full(len(logits), _TEMPERATURE, dtype=np.float32),
            np.zeros(len(logits), dtype=np.int64),
            np.arange(len(logits), dtype=np.int64),
            np.array(wanted, dtype=np.int64),
            np.array(self._tokens * num_seqs, dtype=np.int64),
            np.array(parents * num_seqs, dtype=np.int32),
            np.arange(0, len(logits) + 1, num_rows, dtype=np.int32),
        ]
        temperatures, seeds, positions, synthetic, token_ids, nodes_above, starts = stage(arrays, self._device)
        chosen = self._kernels.choose_tokens(logits, temperatures, seeds, positions)
        walks = self._kernels.walk_trees(
            chosen.copy_(synthetic),
            token_ids,
            nodes_above,
            starts,
            max_depth=max(1, *self._rows.depths),
            max_nodes=num_rows,
        )
        columns = torch.cat([walks.num_accepted[:, None], walks.accepted_nodes], dim=1).tolist()
        return [path[:count] for count, *path in columns]
