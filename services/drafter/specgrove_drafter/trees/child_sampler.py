"""Draws of children: a member's law below a node, and an ordered sample of it without replacement."""

from __future__ import annotations

import secrets

import torch

from specgrove.draft_laws import MAX_LAW_LEN
from specgrove.sampling.noise import Stream, gumbel_row
from specgrove_drafter.trees.growth import Children

_LEAST_PROB = 1e-20  # what is less likely than this is not worth a number that float32 can hardly hold


def law_of(children: Children) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Token ids and probabilities of the law that `children` describe, as float32 numbers: those that are sent."""
    log_probs = torch.tensor(children.log_probs[:MAX_LAW_LEN], dtype=torch.float64)
    probs = log_probs.softmax(dim=-1).to(torch.float32).tolist()
    kept = [(token_id, prob) for token_id, prob in zip(children.token_ids, probs, strict=False) if prob > _LEAST_PROB]
    return tuple(token_id for token_id, _ in kept), tuple(prob for _, prob in kept)


class ChildSampler:
    """Draws under a seed that this drafter alone has.

    No draw may be foreseen from what decides its acceptance, and that follows from the session's seed. So neither that
    seed nor its streams are used here, and every draw has a number of its own.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._num_draws = 0

    @classmethod
    def fresh(cls) -> ChildSampler:
        """A sampler that nobody can foresee."""
        return cls(secrets.randbits(64))

    def draw(self, probs: tuple[float, ...], count: int) -> list[int]:
        """Up to `count` places of `probs`, drawn one after another without replacement, in the order drawn.

        The largest sums of log probability and Gumbel noise, in falling order, are exactly that (Gumbel top-k).
        """
        noise = gumbel_row(self._seed, self._num_draws, len(probs), stream=Stream.DRAFT)
        self._num_draws += 1
        scores = torch.tensor(probs, dtype=torch.float64).log() + noise
        return scores.topk(min(count, len(probs))).indices.tolist()
