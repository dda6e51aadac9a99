"""How much each of several SSMs that speak as one is believed: weights of a mean of laws, learned while serving.

    P(child | node) = sum over models k of  w[kind, depth][k] * p_k(child | node)

The weights are those under which what the target took was likeliest (expectation maximisation, one observation at a
time): below every node on the committed path one child was taken, or none of those shown, and each model has said how
likely that was. Pools differ in how much their later SSMs add, and so do draft depths; a mean with wrong weights is
worse than the best model alone (README). Used by the engine's thread alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.trees.calibration import MAX_CALIBRATED_DEPTH
from specgrove_drafter.trees.proposal import Proposal, steps_taken

PRIOR_TRIALS = 24.0  # evidence for equal weights that the first observations have to outweigh
MAX_TRIALS = 2000.0  # with more, half is forgotten
_LEAST_LIKELIHOOD = 1e-6
_TEACHERS = ("naive", "coupled", "greedy")


@dataclass(slots=True)
class Mixing:
    """The weights of `num_models` models, by kind of session and depth."""

    num_models: int
    _credits: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    # What `log_weights` said since the last lesson: it is asked for every row.
    _said: dict[tuple[str | None, int], tuple[float, ...]] = field(default_factory=dict)

    def log_weights(self, kind: str | None, depth: int) -> tuple[float, ...]:
        """Natural logarithms [num_models] for children at `depth`; equal where nothing is known.

        Sessions of no kind (rule `mss`, where what was drawn says little) take what sampled or greedy ones have taught.
        """
        said = self._said.get((kind, depth))
        if said is None:
            said = self._said[kind, depth] = self._log_weights(kind, depth)
        return said

    def _log_weights(self, kind: str | None, depth: int) -> tuple[float, ...]:
        kinds = _TEACHERS if kind is None else (kind,)
        known = (self._credits.get((name, min(depth, MAX_CALIBRATED_DEPTH))) for name in kinds)
        credits = next((credits for credits in known if credits), None)
        prior = PRIOR_TRIALS / self.num_models
        trials = [prior + (credits[model] if credits else 0.0) for model in range(self.num_models)]
        total = math.log(sum(trials))
        return tuple(math.log(trial) - total for trial in trials)

    def forget(self) -> None:
        """Start again from equal weights."""
        self._credits.clear()
        self._said.clear()

    def learn(self, job: DraftJob, proposal: Proposal, token_ids: Sequence[int]) -> None:
        """Take in that `token_ids` followed the base under which `proposal` was made."""
        if job.estimate_kind is None:
            return  # what was drawn says little of what was not
        for children, taken in steps_taken(proposal, token_ids):
            shares = [proposal.shares[node] for node in children]
            if not shares or not shares[0]:
                return
            if taken is None:
                likelihoods = [1.0 - sum(column) for column in zip(*shares, strict=True)]
            else:
                likelihoods = list(proposal.shares[taken])
            self._credit(job.estimate_kind, proposal.depths[children[0]], likelihoods)

    def _credit(self, kind: str, depth: int, likelihoods: Sequence[float]) -> None:
        parts = [
            math.exp(weight) * max(likelihood, _LEAST_LIKELIHOOD)
            for weight, likelihood in zip(self.log_weights(kind, depth), likelihoods, strict=True)
        ]
        total = sum(parts)
        self._said.clear()
        credits = self._credits.setdefault((kind, min(depth, MAX_CALIBRATED_DEPTH)), [0.0] * self.num_models)
        for model, part in enumerate(parts):
            credits[model] += part / total
        if sum(credits) > MAX_TRIALS:
            credits[:] = [credit / 2.0 for credit in credits]
