"""A head for every draft depth, trained as what it is: linear maps in front of the target's own head.

    x      the SSM's last state at a row                     f   the target's features d rows further up
    guess  y_0 = x @ token_map                               what the target's final state may be, from x alone
           y_d = x @ state_maps[d] + f @ feature_maps[d]     the same at draft depth d, where f is at hand
    logits = y @ [ kept rows of the target's head | other ]

A free head has a row for every token, and little text memorises itself in rows that it has seen three times. The maps
have weights that all tokens share, and the target's rows stay as the target learned them. `fold` multiplies `token_map`
out when training is over, which makes an ordinary model of what the states alone say.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class DepthHead(nn.Module):
    """Maps float32 states [..., H] (and features [..., F]) to logits [..., V] of the draft vocabulary."""

    def __init__(
        self, rows: Tensor, token_map: Tensor, other: Tensor, state_maps: Tensor, feature_maps: Tensor
    ) -> None:
        """`rows` [V - 1, H] of the target's head, `token_map` [H, H], `other` [1, H], one map of each kind a depth:
        `state_maps` [D, H, H] and `feature_maps` [D, F, H]; D may be 0."""
        super().__init__()
        self.rows = nn.Parameter(rows.clone())
        self.token_map = nn.Parameter(token_map.clone())
        self.other = nn.Parameter(other.clone())
        self.state_maps = nn.Parameter(state_maps.clone())
        self.feature_maps = nn.Parameter(feature_maps.clone())

    @classmethod
    def blank(cls, rows: Tensor, num_depths: int, num_features: int) -> DepthHead:
        """A head without any guess yet, for the fit or a checkpoint to fill."""
        hidden = rows.shape[1]
        maps = torch.zeros(num_depths, hidden + num_features, hidden)
        return cls(rows, torch.eye(hidden), torch.zeros(1, hidden), maps[:, :hidden], maps[:, hidden:])

    @property
    def num_depths(self) -> int:
        return int(self.state_maps.shape[0])

    def guess(self, states: Tensor, features: Tensor | None, depth: int) -> Tensor:
        """[N, H], a guess at the target's final states; `depth` 0 reads the states [N, H] alone."""
        if depth == 0:
            return states @ self.token_map
        assert features is not None
        return states @ self.state_maps[depth - 1] + features @ self.feature_maps[depth - 1]

    @property
    def table(self) -> Tensor:
        """[V, H]: what guesses are read with."""
        return torch.cat([self.rows, self.other])

    def read(self, guesses: Tensor) -> Tensor:
        """Logits [N, V] of guesses [N, H]; the last class is "any other token"."""
        table = self.table
        if self.rows.requires_grad or not self.other.requires_grad:
            return guesses @ table.T
        # The rows stay as they are: their gradient, a third of the work, need not be made for the sake of one row's.
        logits = guesses @ table.detach().T
        logits[..., -1:] += guesses.detach() @ (self.other - self.other.detach()).T  # adds 0, carries the gradient
        return logits

    def forward(self, states: Tensor) -> Tensor:
        return self.read(self.guess(states, None, 0))

    def fold(self) -> Tensor:
        """float32 [V, H]: the one matrix that says what the states alone say."""
        return (self.table @ self.token_map.T).detach()


def plain_state(ssm: Any) -> dict[str, Tensor]:
    """The SSM's weights on the CPU under the names of an ordinary model, its head multiplied out."""
    state = {name: value.detach().cpu() for name, value in ssm.state_dict().items() if not name.startswith("lm_head.")}
    head: DepthHead = ssm.lm_head
    return state | {"lm_head.weight": head.fold().cpu()}
