"""A head that is trained as what it is, one linear map in front of the target's own head.

    logits = [ (x @ map) @ kept rows of the target's head | x @ other ]

A free head has a row for every token, and little text memorises itself in rows that it has seen three times. The map
has a few hundred thousand weights that all tokens share, and the target's rows stay as the target learned them.
`fold` multiplies it out when training is over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class FoldedHead(nn.Module):
    """float32 [..., H] -> logits [..., V]; only `map` [H, H] and `other` [1, H] are trained."""

    def __init__(self, rows: Tensor, start_map: Tensor, other: Tensor) -> None:
        """`rows` float32 [V - 1, H] of the target's head; `start_map` and `other` from the closed-form fit."""
        super().__init__()
        self.rows: Tensor
        self.register_buffer("rows", rows.clone())
        self.map = nn.Parameter(start_map.clone())
        self.other = nn.Parameter(other.clone())

    def forward(self, states: Tensor) -> Tensor:
        listed = (states @ self.map) @ self.rows.T
        return torch.cat([listed, states @ self.other.T], dim=-1)

    def fold(self) -> Tensor:
        """float32 [V, H]: the one matrix that says the same."""
        return torch.cat([self.rows @ self.map.T, self.other]).detach()


def plain_state(ssm: Any) -> dict[str, Tensor]:
    """The SSM's weights on the CPU under the names of an ordinary Llama, its head multiplied out."""
    state = {name: value.detach().cpu() for name, value in ssm.state_dict().items() if not name.startswith("lm_head.")}
    head = ssm.lm_head
    state["lm_head.weight"] = (head.fold() if isinstance(head, FoldedHead) else head.weight.detach()).cpu()
    return state


def free_tables(ssm: Any) -> None:
    """Turn the head into an ordinary one, so that every row of it is trained for itself."""
    weight = ssm.lm_head.fold()
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device=weight.device)
    with torch.no_grad():
        head.weight.copy_(weight)
    ssm.lm_head = head
