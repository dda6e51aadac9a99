"""Distillation of an SSM: AdamW on the coarse KL, resumable, over a budget of steps or of minutes.

The learning rate follows the share of the budget that is used up (warm-up, then a half cosine to 0), so a budget in
minutes ends at rate 0 whatever the machine's speed.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specgrove_drafter.tuning.batches import Batch, KeptPositions, collate, epoch_batches
from specgrove_drafter.tuning.drawing import draw_positions, drawn_logits
from specgrove_drafter.tuning.errors import ResumeError
from specgrove_drafter.tuning.hub import has_fast_bfloat16
from specgrove_drafter.tuning.objective import ClassMasses, class_masses, coarse_kl, coarse_law
from specgrove_drafter.tuning.shards import Document
from specgrove_drafter.tuning.vocabulary import DraftVocabulary


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters of one distillation; exactly one of the two budgets is set."""

    max_steps: int | None
    max_seconds: float | None
    learning_rate: float = 6e-4
    warmup_share: float = 0.04
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip_norm: float = 1.0
    batch_tokens: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.max_steps is None) == (self.max_seconds is None):
            raise ValueError("exactly one of max_steps and max_seconds must be set")

    @property
    def budget(self) -> str:
        """For people to read."""
        return f"{self.max_steps:,} steps" if self.max_seconds is None else f"{self.max_seconds / 60:g} minutes"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a distillation stands: what a checkpoint holds besides tensors."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch
    seconds: float = 0.0  # spent so far, over all runs
    num_tokens: int = 0

    def used_share(self, recipe: Recipe) -> float:
        """The share of the budget that is used up, at most 1."""
        spent, budget = (
            (self.step, recipe.max_steps) if recipe.max_steps is not None else (self.seconds, recipe.max_seconds)
        )
        return min(1.0, spent / budget) if budget else 1.0


def rate_factor(share: float, warmup: float) -> float:
    """The learning rate's factor: linear up over the warm-up, half a cosine down to 0."""
    if share < warmup:
        return max(share / warmup, 0.02)
    return 0.5 * (1.0 + math.cos(math.pi * (share - warmup) / (1.0 - warmup)))


def batch_loss(
    ssm: Any,
    batch: Batch,
    to_draft: Tensor,
    tail_outside: float,
    chance: torch.Generator,
    earlier: Sequence[Any] = (),
) -> Tensor:
    """The mean of the coarse KL over positions and depths drawn by `chance`.

    With `earlier` SSMs it is the KL of the mean of their laws and this one's; they get no gradient.
    """
    device = batch.tokens.device
    draw = draw_positions(batch, ssm.lm_head.num_depths, chance)
    places = draw.places
    law = coarse_law(
        batch.top_ids.flatten(0, 1)[places], batch.top_logprobs.flatten(0, 1)[places], to_draft, tail_outside
    )
    with torch.autocast(device.type, torch.bfloat16, enabled=has_fast_bfloat16(device)):
        masses: ClassMasses | None = None
        with torch.no_grad():
            for other in earlier:
                its = class_masses(drawn_logits(other, batch, draw), law)
                masses = its if masses is None else masses + its
        logits = drawn_logits(ssm, batch, draw)
    return coarse_kl(logits, law, masses).sum() / max(len(places), 1)


def choose_trained(ssm: Any, *, tables: bool) -> None:
    """With `tables` everything is trained; without, the embedding and the target's rows in the head stay fixed.

    The two tables are two thirds of the weights, and with under a few million tokens they mostly memorise.
    """
    ssm.lm_head.rows.requires_grad_(tables)
    ssm.model.embed_tokens.weight.requires_grad_(tables)


def make_optimizer(ssm: Any, recipe: Recipe) -> torch.optim.AdamW:
    """Decay for matrices of the layers only: norms and the two tables are left alone."""
    trained = [(name, p) for name, p in ssm.named_parameters() if p.requires_grad]
    layers = [p for name, p in trained if p.dim() == 2 and name.startswith("model.layers.")]
    chosen = {id(p) for p in layers}
    others = [p for _, p in trained if id(p) not in chosen]
    groups = [{"params": layers, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, fused=True)


@dataclass(slots=True)
class Distillation:
    """One run: `advance` until `is_done`; `save` and `load` carry everything that the next step depends on."""

    ssm: Any
    optimizer: torch.optim.AdamW
    recipe: Recipe
    documents: Sequence[Document]
    vocabulary: DraftVocabulary
    tail_outside: float
    kept: KeptPositions | None = None  # None: every position counts
    earlier: Sequence[Any] = ()  # SSMs whose laws are averaged with this one's in the loss
    progress: Progress = Progress()

    @property
    def is_done(self) -> bool:
        return self.progress.used_share(self.recipe) >= 1.0

    def advance(self) -> float:
        """One optimizer step; returns its loss."""
        started = time.monotonic()
        at = self.progress
        device = next(self.ssm.parameters()).device
        numbers, is_last = self._batch_numbers(at.epoch, at.batch)
        to_draft = self.vocabulary.to_draft()
        batch = collate([self.documents[number] for number in numbers], to_draft, self.kept).to(device)
        chance = torch.Generator().manual_seed(hash((self.recipe.seed, at.epoch, at.batch)) % 2**62)
        factor = rate_factor(at.used_share(self.recipe), self.recipe.warmup_share)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * factor
        self.ssm.train()
        loss = batch_loss(self.ssm, batch, to_draft.to(device), self.tail_outside, chance, self.earlier)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.ssm.parameters(), self.recipe.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress = Progress(
            step=at.step + 1,
            epoch=at.epoch + is_last,
            batch=0 if is_last else at.batch + 1,
            seconds=at.seconds + time.monotonic() - started,
            num_tokens=at.num_tokens + batch.num_tokens,
        )
        return float(loss.detach())

    def _batch_numbers(self, epoch: int, batch: int) -> tuple[list[int], bool]:
        """The documents of one batch and whether it ends its epoch; a pure function of the seed and the place."""
        lengths = [len(document) for document in self.documents]
        batches = epoch_batches(lengths, self.recipe.batch_tokens, random.Random(f"{self.recipe.seed}/{epoch}"))
        return batches[batch], batch == len(batches) - 1

    def save(self, path: Path, stamp: str) -> None:
        """Write a checkpoint atomically."""
        place = {name: getattr(self.progress, name) for name in Progress.__slots__}
        beside = path.with_suffix(".partial")
        torch.save(
            {"stamp": stamp, "place": place, "ssm": self.ssm.state_dict(), "optimizer": self.optimizer.state_dict()},
            beside,
        )
        beside.replace(path)

    def load(self, path: Path, stamp: str) -> None:
        """Continue from a checkpoint; raises ResumeError when it belongs to other documents or settings."""
        checkpoint = torch.load(path, weights_only=True)
        if checkpoint["stamp"] != stamp:
            raise ResumeError(
                f"{path} was made with other documents or settings; delete it to distil from the fitted SSM again"
            )
        self.ssm.load_state_dict(checkpoint["ssm"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.progress = replace(Progress(), **checkpoint["place"])


def run(
    distillation: Distillation, say: Callable[[float], None], keep: Callable[[], None], keep_every_s: float
) -> None:
    """Advance to the end; `say(mean loss)` about twice a minute, `keep()` now and then and at the end."""
    said = kept = time.monotonic()
    losses: list[float] = []
    while not distillation.is_done:
        losses.append(distillation.advance())
        now = time.monotonic()
        if now - said > 30:
            say(sum(losses) / len(losses))
            said, losses = now, []
        if now - kept > keep_every_s:
            keep()
            kept = now
    keep()
