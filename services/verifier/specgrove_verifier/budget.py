"""How many draft nodes a session may have in the next step: what commits most tokens per second.

    tokens per second (n nodes each, S sessions) = S * (1 + accepted(n)) / (T(S * (1 + n)) + draft wait if n > 0)

T is the verifier's own cost curve (`cost_curve.py`), accepted(n) what such grants have come to lately
(`acceptance_curve.py`, which also says how many of the n nodes come at all); n = 0 is speculation off. `fixed` grants
the limits always (for tests and comparisons).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specgrove_verifier.acceptance_curve import MAX_NODES, AcceptanceCurve
from specgrove_verifier.cost_curve import CostCurve
from specgrove_verifier.mailbox import NO_DRAFT, DraftBudget

_CANDIDATE_NODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 16, 17, 23, 24, 32, 48, 64)
# Another number of nodes must promise this much more before it takes the place of the present one; for switching off
# less will do, since plain decoding's cost is known best.
_SWITCH_GAIN, _SWITCH_OFF_GAIN = 0.02, 0.005
_EXPLORE_SHARE = 0.015  # of the time, for looking at what other grants are worth by now
_PROBE_STEPS = 2  # after plain decoding: the first draft comes from a drafter that has to read first
_MOST_SAVED_S = 1.0  # of that time, for later
_ERROR_WEIGHT = 0.01
_MOST_RATIO = 3.0  # a cycle that takes longer than so many times what was said had a pause in it


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a step under a grant is expected to bring."""

    num_nodes: int = 0
    num_tokens: float = 0.0  # over all sessions
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0


class FixedBudget:
    """The limits, whatever they cost."""

    def __init__(self, limits: DraftBudget) -> None:
        self.limits = limits

    def grant(self, num_sessions: int, draft_wait_s: float, room: int = MAX_NODES) -> DraftBudget:
        return DraftBudget(min(self.limits.max_nodes, room), self.limits.max_depth)

    def observe_answer(self, granted_nodes: int, num_nodes: int, accepted_nodes: Sequence[int]) -> None:
        pass

    def observe_step(self, rows: int, seconds: float) -> None:
        pass

    def observe_tokens(self, num_tokens: int) -> None:
        pass


class MeasuredBudget:
    """The number of nodes with the best expected rate, 0 when plain decoding is expected to be faster."""

    def __init__(self, limits: DraftBudget, curve: CostCurve, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.account = Account(clock)
        self._curve = curve
        self._acceptance = AcceptanceCurve()
        self._present = 0  # nodes, as last decided
        self._probe = 0  # nodes of the probe that is under way
        self._probe_steps_left = 0
        self._saved_s = 0.0  # for exploring
        self._is_exploring = self._was_exploring = False  # by the last grant, and by the one before

    def grant(self, num_sessions: int, draft_wait_s: float, room: int = MAX_NODES) -> DraftBudget:
        """The budget of each of `num_sessions` sessions that decode together, a draft taking `draft_wait_s` and a step
        having `room` for so many nodes of each.

        It is for the trees of the step after the coming one, which runs what the grant before brought.
        """
        most = min(self.limits.max_nodes, room)
        outlooks = {
            nodes: self._outlook(nodes, num_sessions, draft_wait_s) for nodes in _CANDIDATE_NODES if nodes <= most
        }
        decided = self._decide(outlooks)
        nodes = self._explore(decided, outlooks)
        self._was_exploring, self._is_exploring = self._is_exploring, nodes != decided
        self.account.begin(outlooks[nodes], num_sessions)
        return DraftBudget(nodes, self.limits.max_depth) if nodes else NO_DRAFT

    def observe_answer(self, granted_nodes: int, num_nodes: int, accepted_nodes: Sequence[int]) -> None:
        """Drafters answered a grant of `granted_nodes` with a tree of `num_nodes` draft nodes (0: they had nothing to
        propose), of which the target accepted `accepted_nodes` (numbered from 1)."""
        self._acceptance.observe(granted_nodes, num_nodes, accepted_nodes)

    def observe_step(self, rows: int, seconds: float) -> None:
        if self._was_exploring:  # cheaper than the curve had it: so much more can be looked at
            self._saved_s += max(self._curve.seconds(rows) - seconds, 0.0)
        self._curve.observe(rows, seconds)

    def observe_tokens(self, num_tokens: int) -> None:
        """So many tokens were committed for one session."""
        self.account.add(num_tokens)

    def _outlook(self, nodes: int, num_sessions: int, draft_wait_s: float) -> Outlook:
        num_rows = num_sessions * (1.0 + self._acceptance.expected_nodes(nodes))
        seconds = self._curve.seconds(num_rows) + (draft_wait_s if nodes else 0.0)
        return Outlook(nodes, num_sessions * (1 + self._acceptance.expected(nodes)), seconds)

    def _decide(self, outlooks: dict[int, Outlook]) -> int:
        best = max(outlooks.values(), key=lambda outlook: outlook.tokens_per_s)
        present = outlooks.get(self._present)
        gain = _SWITCH_GAIN if best.num_nodes else _SWITCH_OFF_GAIN
        if present is None or best.tokens_per_s > (1.0 + gain) * present.tokens_per_s:
            self._present = best.num_nodes
        return self._present

    def _explore(self, nodes: int, outlooks: dict[int, Outlook]) -> int:
        """Mostly what was decided; now and then another grant, or it would never be known that times have changed.

        What that costs by the present expectation is saved up beforehand, so it stays a small share of the time
        however dear the steps are.
        """
        if self._probe_steps_left and not nodes and self._probe in outlooks:
            self._probe_steps_left -= 1
            return self._probe
        self._probe_steps_left = 0
        decided = outlooks[nodes]
        self._saved_s = min(self._saved_s + _EXPLORE_SHARE * decided.seconds, max(_MOST_SAVED_S, decided.seconds))
        others = [
            other
            for other in outlooks.values()
            if nodes < other.num_nodes and (not nodes or other.num_nodes <= 2 * nodes)
        ]
        if not others:
            return nodes
        # More nodes than now: the next size that could be right. None now: the one that is nearest to paying.
        other = max(others, key=lambda other: other.num_nodes if nodes else other.tokens_per_s)
        num_steps = 1 if nodes else _PROBE_STEPS
        lost_s = num_steps * (other.seconds - other.num_tokens / decided.tokens_per_s)
        if lost_s > self._saved_s:
            return nodes
        self._saved_s -= max(lost_s, 0.0)
        self._probe, self._probe_steps_left = other.num_nodes, num_steps - 1
        return other.num_nodes


Budget = FixedBudget | MeasuredBudget


class Account:
    """What was expected of steps beside what they brought, as moving means."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._outlook = Outlook()
        self._nodes_before = -1  # of the grant before: its trees run in the cycle of the present one
        self._num_sessions = 0
        self._began_s = 0.0
        self._num_tokens = 0
        self._means: tuple[float, ...] | None = None  # expected tokens and seconds, observed tokens and seconds

    @property
    def num_nodes(self) -> int:
        """The grant in force."""
        return self._outlook.num_nodes

    @property
    def expected_tokens_per_s(self) -> float:
        return self._means[0] / self._means[1] if self._means else 0.0

    @property
    def observed_tokens_per_s(self) -> float:
        return self._means[2] / self._means[3] if self._means else 0.0

    @property
    def error(self) -> float:
        """How far expectations were off of late, as a share of what was observed."""
        observed = self.observed_tokens_per_s
        return abs(self.expected_tokens_per_s - observed) / observed if observed else 0.0

    def begin(self, outlook: Outlook, num_sessions: int) -> None:
        """A grant for `num_sessions` is made: the cycle under the one before is over."""
        now_s = self._clock()
        elapsed_s = now_s - self._began_s
        said = self._outlook
        is_alike = num_sessions == self._num_sessions and said.num_nodes == self._nodes_before
        if is_alike and self._num_tokens and elapsed_s < _MOST_RATIO * said.seconds:
            seen = (said.num_tokens, said.seconds, float(self._num_tokens), elapsed_s)
            means = self._means or seen
            self._means = tuple(mean + _ERROR_WEIGHT * (value - mean) for mean, value in zip(means, seen, strict=True))
        self._nodes_before, self._outlook = said.num_nodes, outlook
        self._num_sessions, self._began_s, self._num_tokens = num_sessions, now_s, 0

    def add(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
