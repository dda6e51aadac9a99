"""Multi-step speculative sampling: SpecInfer's algorithm 2 (VerifyStochastic), the rule `mss`.

    at a node           target_probs = the target's law, after temperature and truncation
    for every draw x    accept with probability target_probs(x) / draft_probs(x): go on at the child x
    ... rejected        target_probs <- norm(max(0, target_probs - draft_probs)); then the next draw
    all rejected        draw the own token from what is left of target_probs; at a leaf that is the target's law

Lossless under three conditions, each of which costs exactness when it is broken (tests/statistics/test_mss_law.py):
* children are *drawn* from the law that came with them. The likeliest k of a law are no draws from it.
* they are drawn without replacement: for a later draw draft_probs is without the earlier ones, renormalised;
* a child that two laws drew is one node and two draws: it is tried once for each.

Laws under one node (members of an ensemble, several drafters) are tried law by law, each from its first draw. A point
mass is a law too, so what a deterministic member proposes is tried like the rest.

Differs from the paper: it tries the children in random order. Any order that is fixed before the draws is as good, and
the order in which a law drew them is the one its renormalisation knows.

The uniforms that decide are a pure function of (seed, position, number of the trial), so that a run can be repeated;
their stream is not that of the drafter's draws (`noise.Stream`): with the same noise on both sides "drawn" and
"accepted" would depend on each other and the output would no longer follow the target's law. For the same reason the
drafter is not told the seed. That draws are really random cannot be checked here: `mss` trusts its drafters,
`coupled` and `naive` need not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from specgrove.draft import ChildLaw
from specgrove.sampling.noise import NoiseRows, Stream, uniform
from specgrove.sampling.verification import Verdict
from specgrove.tree import ROOT, TokenTree


@dataclass(frozen=True, slots=True)
class Trial:
    """One draw on trial; `acceptance` is its chance, given that all draws before it were rejected."""

    node: int
    acceptance: float


class ChildTrials:
    """The trials at one node. To ask for the next trial is to reject the one before.

    `residual` is what is left of the target's law after the rejections so far (float64 [V], sum 1).
    """

    def __init__(
        self,
        target_probs: torch.Tensor,  # float64 [V]
        laws: Sequence[ChildLaw],  # those below this node
        token_ids: Sequence[int],  # of the tree's nodes
    ) -> None:
        self.residual = target_probs
        self._laws = laws
        self._token_ids = token_ids

    def __iter__(self) -> Iterator[Trial]:
        for law in self._laws:
            ids = torch.tensor(law.token_ids, device=self.residual.device)  # int64 [K]
            draft_probs = torch.tensor(law.probs, dtype=torch.float64, device=self.residual.device)  # [K]
            for node in law.draws:
                draft_probs = draft_probs / draft_probs.sum()
                token_id = self._token_ids[node]
                place = law.token_ids.index(token_id)
                yield Trial(node, min(float(self.residual[token_id] / draft_probs[place]), 1.0))
                self.residual = _residual(self.residual, ids, draft_probs)
                draft_probs[place] = 0.0


def _residual(target_probs: torch.Tensor, ids: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """norm(max(0, target_probs - draft_probs)): float64 [V], int64 [K], float64 [K] -> float64 [V]."""
    left = target_probs.clone()
    left[ids] = (left[ids] - draft_probs).clamp_min(0.0)
    mass = left.sum()
    # Nothing left means equal laws, under which nothing is rejected but by a rounding error.
    return left / mass if mass > 0.0 else target_probs


class MssNoise:
    """The randomness of one generation's walks: `own` gives the rows of the stream OWN, under the same `seed`."""

    def __init__(self, seed: int, own: NoiseRows) -> None:
        self._seed = seed
        self._own = own

    def uniform(self, position: int, number: int) -> float:
        """What the `number`-th trial for the token at absolute `position` must stay below to be accepted."""
        return uniform(self._seed, position, number, Stream.TRIALS)

    def draw(self, probs: torch.Tensor, position: int) -> int:  # float64 [V]
        """The token at `position`, drawn from `probs`."""
        return int((probs.log() + self._own.rows([position])[0]).argmax())


def verify_mss(
    tree: TokenTree,
    laws: Sequence[ChildLaw],
    root_position: int,  # absolute index of the token that is drawn after the root
    target_probs: Callable[[int], torch.Tensor],  # node -> float64 [V]; asked for the nodes of the path alone
    noise: MssNoise,
) -> Verdict:
    """Walk `tree`, whose every draft node is a draw of one of `laws` (specgrove.draft_laws checks that)."""
    below: dict[int, list[ChildLaw]] = {}
    for law in laws:
        below.setdefault(law.parent, []).append(law)
    accepted: list[int] = []
    node = ROOT
    while True:
        position = root_position + len(accepted)
        trials = ChildTrials(target_probs(node), below.get(node, ()), tree.token_ids)
        for number, trial in enumerate(trials):
            if noise.uniform(position, number) < trial.acceptance:
                accepted.append(trial.node)
                node = trial.node
                break
        else:
            return Verdict(tuple(accepted), noise.draw(trials.residual, position), is_bonus=node not in below)
