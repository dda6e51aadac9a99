"""The seam between packed rows and a model: who computes the logits of a step.

`ModuleDecoder` runs the model's own `transformers` code with our attention in it, which fits every architecture;
`lean_decoder.LeanDecoder` writes Llama-shaped models out, which is faster. Both read and write the same cache in the
course of a process, never the same sequence: they lay keys out differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from specgrove.runtime.attention import PackedStep
from specgrove.runtime.state_tap import RewriteStates, rewriting_head_input


class StateReader(Protocol):
    """Reads inner states in passing."""

    def reading(self, layers: Sequence[int], rows: torch.Tensor) -> AbstractContextManager[list[torch.Tensor]]:
        """States of the packed rows `rows` (int64 [W]) in the one forward that runs inside.

        Afterwards the list holds float [W, H] for each of `layers` (counted from 1), then for the final norm.
        """
        ...


class Decoder(Protocol):
    """Runs packed rows through a model."""

    @property
    def num_models(self) -> int:
        """K: how many models of one shape run as one."""
        ...

    def logits(
        self,
        token_ids: torch.Tensor,  # int64 [1, N]
        positions: torch.Tensor,  # int64 [1, N]
        wanted: torch.Tensor,  # int64 [W], packed rows
        step: PackedStep,
        before_head: RewriteStates | None = None,
    ) -> torch.Tensor:  # float32 [W, K * V]
        """One forward. Rows outside `wanted` only leave keys and values behind; `before_head` may change the states
        [K, W, H] of the others on their way into the head."""
        ...


@dataclass(frozen=True, slots=True)
class ModuleDecoder:
    """A `transformers` model as it is."""

    model: Any

    @property
    def num_models(self) -> int:
        return 1

    def logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        step: PackedStep,
        before_head: RewriteStates | None = None,
    ) -> torch.Tensor:
        """See `Decoder`."""
        with nullcontext() if before_head is None else rewriting_head_input(self.model, before_head):
            output = self.model(
                input_ids=token_ids,
                position_ids=positions,
                logits_to_keep=wanted,
                use_cache=False,
                packed_step=step,
            )
        return output.logits[0].float()
