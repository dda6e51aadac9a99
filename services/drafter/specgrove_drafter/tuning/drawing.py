"""Which positions count in a step of distillation, at which draft depth, and what an SSM says there.

Positions are drawn with the weight of their role as probability rather than weighted, because the head is most of the
work. The same draw serves the SSM that is trained and those that are not trained any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specgrove_drafter.tuning.batches import Batch
from specgrove_drafter.tuning.depth_head import DepthHead
from specgrove_drafter.tuning.shards import Role

# Answers are what a drafter drafts; user turns and templates are only more of the target's mind.
ROLE_WEIGHTS = {Role.UNSEEN: 0.0, Role.FORCED: 0.05, Role.USER: 0.35, Role.ANSWER: 1.0}


@dataclass(frozen=True, slots=True)
class Draw:
    """The flat positions of a batch that count in one step, by draft depth from 0 on."""

    by_depth: tuple[Tensor, ...]  # int64 [N_d] each
    features: tuple[Tensor | None, ...]  # [N_d, F] each; None at depth 0, which reads the states alone

    @property
    def places(self) -> Tensor:
        """int64 [N], in the order of `drawn_logits`."""
        return torch.cat(self.by_depth)


def draw_positions(batch: Batch, num_depths: int, chance: torch.Generator) -> Draw:
    """Every position that `chance` picks, once at the depth that drafting uses most (1 where there are feature maps,
    else 0) and, where there are more depths, perhaps once more at another one."""
    by_role = torch.tensor([ROLE_WEIGHTS[role] for role in Role])
    drawn = torch.rand(batch.roles.numel(), generator=chance) < by_role[batch.roles.flatten().cpu().long()]
    counted = (batch.seen & batch.kept).flatten() & drawn.to(batch.roles.device)
    chosen = torch.randint(num_depths + 1, counted.shape, generator=chance).to(counted.device)
    main = min(num_depths, 1)
    by_depth: list[Tensor] = []
    features: list[Tensor | None] = []
    for depth in range(num_depths + 1):
        wanted = counted if depth == main else counted & (chosen == depth)
        if depth:
            before, known = batch.features_before(depth)
            wanted = wanted & known.flatten()
            features.append(before.flatten(0, 1)[wanted])
        else:
            features.append(None)
        by_depth.append(wanted.nonzero().flatten())
    return Draw(tuple(by_depth), tuple(features))


def drawn_logits(ssm: Any, batch: Batch, draw: Draw) -> Tensor:
    """The SSM's logits [N, V] at the drawn positions and depths: its layers run once, its head there only.

    At depths that it has no maps for it reads its states alone, as it does when it drafts.
    """
    head: DepthHead = ssm.lm_head
    states = ssm.model(input_ids=batch.tokens, use_cache=False).last_hidden_state.flatten(0, 1)
    guesses = []
    for depth, (places, features) in enumerate(zip(draw.by_depth, draw.features, strict=True)):
        own = states[places]
        if features is None or depth > head.num_depths:
            guesses.append(head.guess(own, None, 0))
        else:
            guesses.append(head.guess(own, features.to(own.dtype), depth))
    return head.read(torch.cat(guesses))
