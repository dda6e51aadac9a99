"""Calibration: from how likely a member says a node is to how often such nodes come true.

A member estimates P(the target takes this node | it is at the parent). What became of its nodes comes back with the
commits: below every node on the committed path exactly one token was taken, so each candidate there came true or not.
Nodes whose parent was not reached are no evidence.

    estimate 0.6 (log-odds 0.4) ── buckets of log-odds ──▶ offset learned there, interpolated ──▶ calibrated 0.45

One table for each member, kind of session (greedy, coupled, naive: their estimates mean different things) and depth,
over all sessions of the drafter. A table starts as the identity; each bucket moves from there as its evidence outgrows
`PRIOR_TRIALS`; old evidence fades, offsets are bounded, and order is kept: a larger estimate never maps to a smaller
one. Used by the engine's thread alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.trees.proposal import Proposal, Scale, as_estimated, steps_taken

MAX_CALIBRATED_DEPTH = 8  # deeper nodes share the last table
PRIOR_TRIALS = 6.0  # evidence that a bucket needs before it is believed more than the estimate itself
MAX_TRIALS = 1000.0  # a bucket with more forgets half
MAX_OFFSET = 5.0
_FIRST_CENTRE, _STEP, _NUM_BUCKETS = -7.0, 0.5, 27  # centres of log-odds: probabilities 0.001 to 0.998
_MAX_LOG_ODDS = 9.0
_MAX_UNHEEDED = 48  # observations that the offsets may not know of yet


@dataclass(slots=True)
class CalibrationTable:
    """The map of one member, kind and depth."""

    sums: list[float] = field(default_factory=lambda: [0.0] * _NUM_BUCKETS)  # of estimates
    hits: list[float] = field(default_factory=lambda: [0.0] * _NUM_BUCKETS)
    trials: list[float] = field(default_factory=lambda: [0.0] * _NUM_BUCKETS)
    _offsets: list[float] = field(default_factory=lambda: [0.0] * _NUM_BUCKETS)
    _num_new: int = 0  # observations since the offsets were made
    _num_made_of: int = 0  # observations before that

    def observe(self, log_prob: float, is_hit: bool) -> None:
        log_odds = _log_odds(log_prob)
        left, share = _between(log_odds)
        # Both neighbours learn, by their share in what `calibrated` makes of this estimate.
        for bucket, weight in ((left, 1.0 - share), (left + 1, share)):
            self.sums[bucket] += weight * _sigmoid(log_odds)
            self.hits[bucket] += weight * is_hit
            self.trials[bucket] += weight
            if self.trials[bucket] > MAX_TRIALS:
                for counts in (self.sums, self.hits, self.trials):
                    counts[bucket] /= 2.0
        self._num_new += 1

    def calibrated(self, log_prob: float) -> float:
        """The log probability that an estimate of `log_prob` stands for."""
        # A draft waits for this: offsets are made anew when a sixteenth of the evidence is new, or a few dozen nodes.
        if self._num_new > min(self._num_made_of // 16, _MAX_UNHEEDED):
            self._num_made_of += self._num_new
            self._num_new = 0
            self._offsets = self._make_offsets()
        log_odds = _log_odds(log_prob)
        left, share = _between(log_odds)
        offset = (1.0 - share) * self._offsets[left] + share * self._offsets[left + 1]
        return -_softplus(-(log_odds + offset))

    def _make_offsets(self) -> list[float]:
        centres = [_FIRST_CENTRE + _STEP * bucket for bucket in range(_NUM_BUCKETS)]
        mapped = [centre + self._offset(bucket) for bucket, centre in enumerate(centres)]
        weights = [trials + PRIOR_TRIALS for trials in self.trials]
        ordered = _non_decreasing(mapped, weights)
        return [value - centre for value, centre in zip(ordered, centres, strict=True)]

    def _offset(self, bucket: int) -> float:
        trials = self.trials[bucket]
        if trials == 0.0:
            return 0.0
        estimate = min(max(self.sums[bucket] / trials, 1e-5), 1.0 - 1e-5)
        rate = (self.hits[bucket] + PRIOR_TRIALS * estimate) / (trials + PRIOR_TRIALS)
        offset = _log_odds(math.log(rate)) - _log_odds(math.log(estimate))
        return min(max(offset, -MAX_OFFSET), MAX_OFFSET)


@dataclass(slots=True)
class CalibrationError:
    """How far calibrated estimates were from what came true, over the recent past (expected calibration error)."""

    sums: list[float] = field(default_factory=lambda: [0.0] * 10)  # by tenth of the calibrated probability
    hits: list[float] = field(default_factory=lambda: [0.0] * 10)
    num_trials: float = 0.0

    def observe(self, prob: float, is_hit: bool) -> None:
        tenth = min(int(prob * 10), 9)
        self.sums[tenth] += prob
        self.hits[tenth] += is_hit
        self.num_trials += 1.0
        if self.num_trials > 4 * MAX_TRIALS:
            self.num_trials /= 2.0
            self.sums = [value / 2.0 for value in self.sums]
            self.hits = [value / 2.0 for value in self.hits]

    @property
    def value(self) -> float:
        gaps = (abs(said - came_true) for said, came_true in zip(self.sums, self.hits, strict=True))
        return sum(gaps) / max(self.num_trials, 1.0)


@dataclass(slots=True)
class Calibration:
    """The tables of all members; a member is named by its bit number."""

    tables: dict[tuple[int, str, int], CalibrationTable] = field(default_factory=dict)
    errors: dict[int, CalibrationError] = field(default_factory=dict)

    def scale(self, member: int, job: DraftJob) -> Scale:
        """The map for one member's proposal: (depth, conditional log probability) -> calibrated one."""
        kind = job.estimate_kind
        return as_estimated if kind is None else partial(self._calibrated, member, kind)

    def learn(self, member: int, job: DraftJob, proposal: Proposal, token_ids: Sequence[int]) -> None:
        """Take in that `token_ids` followed the base under which `proposal` was made."""
        kind = job.estimate_kind
        if kind is None:
            return
        error = self.errors.setdefault(member, CalibrationError())
        for node, is_hit in labelled(proposal, token_ids):
            depth, estimate = proposal.depths[node], proposal.raw_log_probs[node]
            error.observe(math.exp(proposal.log_prob(node)), is_hit)
            self._table(member, kind, depth).observe(estimate, is_hit)

    def error(self, member: int) -> float:
        """Expected calibration error of the member's recent estimates, 0 to 1."""
        known = self.errors.get(member)
        return 0.0 if known is None else known.value

    def _calibrated(self, member: int, kind: str, depth: int, log_prob: float) -> float:
        table = self.tables.get((member, kind, min(depth, MAX_CALIBRATED_DEPTH)))
        return log_prob if table is None else table.calibrated(log_prob)

    def _table(self, member: int, kind: str, depth: int) -> CalibrationTable:
        return self.tables.setdefault((member, kind, min(depth, MAX_CALIBRATED_DEPTH)), CalibrationTable())


def labelled(proposal: Proposal, token_ids: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """The nodes of `proposal` whose parent is on the path of `token_ids`, each with whether it was taken."""
    for children, taken in steps_taken(proposal, token_ids):
        for node in children:
            yield node, node == taken


def _log_odds(log_prob: float) -> float:
    """log(p / (1 - p)) of log p, bounded; anything that is no log probability counts as certain or impossible."""
    if not log_prob > -_MAX_LOG_ODDS:  # NaN too
        return -_MAX_LOG_ODDS
    rest = -math.expm1(min(log_prob, 0.0))
    return min(log_prob - math.log(rest), _MAX_LOG_ODDS) if rest > 0.0 else _MAX_LOG_ODDS


def _between(log_odds: float) -> tuple[int, float]:
    """The bucket to the left of the log-odds, and how far from it to the next they stand, 0 to 1."""
    place = min(max((log_odds - _FIRST_CENTRE) / _STEP, 0.0), _NUM_BUCKETS - 1.0)
    left = min(int(place), _NUM_BUCKETS - 2)
    return left, place - left


def _sigmoid(log_odds: float) -> float:
    return 1.0 / (1.0 + math.exp(-log_odds))


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def _non_decreasing(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest non-decreasing sequence in weighted least squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # (mean, weight, length)
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, heavier, length = blocks.pop()
            total = heavier + block[1]
            block = ((mean * heavier + block[0] * block[1]) / total, total, length + block[2])
        blocks.append(block)
    return [mean for mean, _, length in blocks for _ in range(length)]
