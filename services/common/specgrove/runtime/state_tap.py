"""Reading a model's inner states in passing, at forwards that ask for it and at no cost to those that do not.

    embedding ── layer 1 ── ... ── layer a ── ... ── layer L ── final norm ── head
                                      │                             │
                                      └────────── read ─────────────┘

`output_hidden_states` would keep every row of every layer; a hook that lives for one forward keeps the wanted rows of
the wanted layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from specgrove.errors import ModelLoadError

RewriteStates = Callable[[torch.Tensor], torch.Tensor]  # float [1, W, H] -> the same


@dataclass(frozen=True, slots=True)
class StateTap:
    """Where the states of a model come out: its decoder and the decoder's layers."""

    decoder: nn.Module
    layers: nn.ModuleList

    @classmethod
    def find(cls, model: Any, num_layers: int) -> StateTap:
        """The tap of a `transformers` causal language model; raises `ModelLoadError` where there is none."""
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else getattr(model, "base_model", None)
        if isinstance(decoder, nn.Module) and decoder is not model:
            for module in decoder.modules():  # outer ones first
                if isinstance(module, nn.ModuleList) and len(module) == num_layers:
                    return cls(decoder, module)
        raise ModelLoadError(
            f"{type(model).__name__} has no decoder with a list of {num_layers} layers; its states cannot be read, so "
            "feature-fed SSMs cannot be used with it"
        )

    @contextmanager
    def reading(self, layers: Sequence[int], rows: torch.Tensor) -> Iterator[list[torch.Tensor]]:
        """States of the packed rows `rows` (int64 [W]) in the one forward that runs inside.

        Afterwards the list holds float [W, H] for each of `layers` (counted from 1), then for the final norm.
        """
        parts: list[torch.Tensor] = [rows] * (len(layers) + 1)
        sources = [*(self.layers[layer - 1] for layer in layers), self.decoder]
        with ExitStack() as hooks:
            for place, source in enumerate(sources):
                handle = source.register_forward_hook(_keeper(parts, place, rows))
                hooks.callback(handle.remove)
            yield parts


@contextmanager
def rewriting_head_input(model: Any, rewrite: RewriteStates) -> Iterator[None]:
    """Let `rewrite` change what goes into the head in the forwards that run inside."""
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda module, args: (rewrite(args[0]), *args[1:]))
    try:
        yield
    finally:
        handle.remove()


def _keeper(parts: list[torch.Tensor], place: int, rows: torch.Tensor) -> Callable[..., None]:
    def keep(module: nn.Module, args: Any, output: Any) -> None:
        # A layer gives its states alone or first in a tuple, a decoder a record whose first entry they are. Copied
        # here, since a model may go on to work in place.
        states = output if isinstance(output, torch.Tensor) else output[0]
        parts[place] = states[0, rows]

    return keep
