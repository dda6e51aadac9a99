"""How many draft nodes a session may have in the next step: what commits most tokens per second.

    tokens per second (n nodes each, S sessions) = S * (1 + accepted(n)) / (T(S * (1 + n)) + draft wait if n > 0)

T is the verifier's own cost curve (`cost_curve.py`), accepted(n) what such grants have come to lately
(`acceptance_curve.py`, which also says how many of the n nodes come at all); n = 0 is speculation off. `fixed` grants
the limits always (for tests and comparisons).

Where drafts take long beside steps the sessions can go in turns: half of them are verified while the other half's trees
are drafted, and a turn takes max(T, (T + draft wait) / 2) at T of half the rows. Where drafter and verifier share their
cores that is slower than it looks; by how much each pacing is slower than said is learned, too (`account.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import cycle

from specgrove_verifier.acceptance_curve import MAX_NODES, AcceptanceCurve
from specgrove_verifier.account import Account, Cycle, Outlook, Pacing, Plan
from specgrove_verifier.cost_curve import CostCurve
from specgrove_verifier.mailbox import NO_DRAFT, DraftBudget

_CANDIDATE_NODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 16, 17, 23, 24, 32, 48, 64)
# Another number of nodes must promise this much more before it takes the place of the present one; for switching off
# less will do, since plain decoding's cost is known best.
_SWITCH_GAIN, _SWITCH_OFF_GAIN = 0.02, 0.005
_EXPLORE_SHARE = 0.015  # of the time, for looking at what other grants are worth by now
_PROBE_STEPS = 2  # after plain decoding: the first draft comes from a drafter that has to read first
_PACING_PROBE_STEPS = 8  # the first of them only part the sessions
_PLAIN_PROBE_STEPS = 3  # a step is only learned from after one of its kind
_MOST_SAVED_S = 1.0  # of that time, for later; and owed
_DEARNESS_WEIGHT, _MOST_DEARNESS = 0.3, 30.0
_MOST_LOST = 5.0  # of a usual cycle, by one cycle of a probe


class _Look(Enum):
    """What a probe tries in place of the nodes that were decided on."""

    SIZE = auto()
    PACING = auto()
    PLAIN = auto()


_LOOKS = (_Look.SIZE, _Look.PACING, _Look.SIZE, _Look.PACING, _Look.PLAIN)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The sessions of a step that only decodes; a mean over steps need not be whole."""

    num_drafted: float  # those that drafts may be made for
    num_plain: float  # those that want none

    @property
    def size(self) -> float:
        return self.num_drafted + self.num_plain

    def turn(self) -> _Batch:
        """What a step takes of it when they go in turns."""
        share = turn_size(round(self.size)) / self.size
        return _Batch(share * self.num_drafted, share * self.num_plain)


@dataclass(slots=True)
class _Bill:
    """What a probe costs: its grants are felt one cycle longer, when the trees of the last are verified."""

    num_cycles_left: int
    charged_s: float  # beforehand
    is_from_off: bool  # plain decoding was decided on
    lost_s: float = 0.0


class FixedBudget:
    """The limits, whatever they cost."""

    def __init__(self, limits: DraftBudget, pacing: Pacing = Pacing.TOGETHER) -> None:
        self.limits = limits
        self.pacing = pacing

    def grant(self, num_sessions: int, draft_wait_s: float, room: int = MAX_NODES, num_plain: int = 0) -> DraftBudget:
        return DraftBudget(min(self.limits.max_nodes, room), self.limits.max_depth)

    def observe_answer(self, granted_nodes: int, num_nodes: int, accepted_nodes: Sequence[int]) -> None:
        pass

    def observe_step(self, rows: int, seconds: float) -> None:
        pass

    def observe_tokens(self, num_tokens: int) -> None:
        pass


class MeasuredBudget:
    """The number of nodes and the pacing with the best expected rate; no nodes when plain decoding is expected to be
    faster. With `pacings` of one only the nodes are chosen."""

    def __init__(
        self,
        limits: DraftBudget,
        curve: CostCurve,
        clock: Callable[[], float] = time.monotonic,
        pacings: Sequence[Pacing] = tuple(Pacing),
    ) -> None:
        self.limits = limits
        self.account = Account(clock)
        self._curve = curve
        self._pacings = tuple(pacings)
        self._acceptance = AcceptanceCurve()
        self._present = Plan(0, self._pacings[0])  # as last decided
        self._probe = Plan()  # the probe that is under way
        self._probe_steps_left = 0
        self._saved_s = 0.0  # for exploring; less than nothing when it cost more than was expected
        self._bill: _Bill | None = None  # of the probe whose cycles are not all over
        self._dearness = 1.0  # what probes cost of late over what they were expected to
        self._looks = cycle(_LOOKS)
        self._look = next(self._looks)  # what is to be looked at next while nodes are granted

    @property
    def pacing(self) -> Pacing:
        """Which sessions the coming steps take."""
        return self.account.pacing

    def grant(self, num_sessions: int, draft_wait_s: float, room: int = MAX_NODES, num_plain: int = 0) -> DraftBudget:
        """The budget of each of `num_sessions` sessions that decode at present, a draft taking `draft_wait_s` and a
        step having `room` for so many nodes of each; `num_plain` more want no drafts.

        It is for the trees of the step after the coming one, which runs what the grant before brought.
        """
        most = min(self.limits.max_nodes, room) if num_sessions else 0
        batch = _Batch(num_sessions, num_plain)
        outlooks = {
            plan: self._outlook(plan, batch, draft_wait_s)
            for pacing in self._pacings
            for plan in (Plan(nodes, pacing) for nodes in _CANDIDATE_NODES)
            if plan.num_nodes <= most and self._is_possible(plan, batch)
        }
        decided = self._decide(outlooks)
        had_bill = self._bill is not None
        plan = self._explore(decided, outlooks)
        ended = self.account.begin(outlooks[plan], num_sessions + num_plain, num_plain)
        if self._bill is not None and had_bill:
            self._settle(self._bill, ended, outlooks[decided])
        return DraftBudget(plan.num_nodes, self.limits.max_depth) if plan.num_nodes else NO_DRAFT

    def observe_answer(self, granted_nodes: int, num_nodes: int, accepted_nodes: Sequence[int]) -> None:
        """Drafters answered a grant of `granted_nodes` with a tree of `num_nodes` draft nodes (0: they had nothing to
        propose), of which the target accepted `accepted_nodes` (numbered from 1)."""
        self.account.add_answer()
        self._acceptance.observe(granted_nodes, num_nodes, accepted_nodes)

    def observe_step(self, rows: int, seconds: float) -> None:
        self.account.add_pure_step()
        self._curve.observe(rows, seconds)

    def observe_tokens(self, num_tokens: int) -> None:
        """So many tokens were committed for one session."""
        self.account.add(num_tokens)

    def _is_possible(self, plan: Plan, batch: _Batch) -> bool:
        if plan.pacing is Pacing.TOGETHER or len(self._pacings) == 1:
            return True
        return batch.size > 1 and plan.num_nodes > 0  # plain decoding and a single session have no turns to take

    def _outlook(self, plan: Plan, batch: _Batch, draft_wait_s: float) -> Outlook:
        nodes = plan.num_nodes
        slowdown = self.account.slowdown(plan, round(batch.size))
        if plan.pacing is Pacing.IN_TURNS and nodes and batch.size > 1:
            batch = batch.turn()
            step_s = self._step_s(batch, nodes)
            seconds = max(step_s, (step_s + draft_wait_s) / 2)  # two steps and the wait of one, at least
        else:
            seconds = self._step_s(batch, nodes) + (draft_wait_s if nodes else 0.0)
        num_tokens = batch.size + batch.num_drafted * self._acceptance.expected(nodes)
        return Outlook(plan, num_tokens, slowdown * seconds, batch.num_drafted if nodes else 0)

    def _step_s(self, batch: _Batch, nodes: int) -> float:
        return self._curve.seconds(batch.size + batch.num_drafted * self._acceptance.expected_nodes(nodes))

    def _decide(self, outlooks: dict[Plan, Outlook]) -> Plan:
        best = max(outlooks.values(), key=lambda outlook: outlook.tokens_per_s)
        present = outlooks.get(self._present)
        gain = _SWITCH_GAIN if best.num_nodes else _SWITCH_OFF_GAIN
        if present is None or best.tokens_per_s > (1.0 + gain) * present.tokens_per_s:
            self._present = best.plan
        return self._present

    def _explore(self, plan: Plan, outlooks: dict[Plan, Outlook]) -> Plan:
        """Mostly what was decided; now and then another plan, or it would never be known that times have changed.

        What that costs by the present expectation is saved up beforehand, so it stays a small share of the time
        however dear the steps are.
        """
        if self._probe_steps_left and self._probe in outlooks:
            self._probe_steps_left -= 1
            return self._probe
        self._probe_steps_left = 0
        decided = outlooks[plan]
        self._saved_s = min(self._saved_s + _EXPLORE_SHARE * decided.seconds, max(_MOST_SAVED_S, decided.seconds))
        other, num_steps = self._next_to_look_at(plan, outlooks)
        if other is None:
            return plan
        lost_s = num_steps * (other.seconds - other.num_tokens / decided.tokens_per_s)
        lost_s *= self._dearness if not plan.num_nodes else 1.0  # drafters have to read first
        if lost_s > self._saved_s:
            return plan
        self._saved_s -= max(lost_s, 0.0)
        self._bill = _Bill(num_steps + 1, max(lost_s, 0.0), is_from_off=not plan.num_nodes)
        self._look = next(self._looks)
        self._probe, self._probe_steps_left = other.plan, num_steps - 1
        return other.plan

    def _settle(self, bill: _Bill, ended: Cycle, decided: Outlook) -> None:
        """Take in what a cycle of a probe cost beside the time in which its tokens would have come anyway; pay when the
        probe is over."""
        cost_s = ended.seconds - ended.num_tokens / decided.tokens_per_s
        bill.lost_s += min(cost_s, _MOST_LOST * decided.seconds)  # a prompt that was read meanwhile is no cost of it
        bill.num_cycles_left -= 1
        if not bill.num_cycles_left:
            if bill.is_from_off and bill.charged_s > 0.0:
                ratio = self._dearness * bill.lost_s / bill.charged_s
                dearness = self._dearness + _DEARNESS_WEIGHT * (ratio - self._dearness)
                self._dearness = min(max(dearness, 1.0), _MOST_DEARNESS)
            self._saved_s = max(self._saved_s + bill.charged_s - max(bill.lost_s, 0.0), -_MOST_SAVED_S)
            self._bill = None

    def _next_to_look_at(self, plan: Plan, outlooks: dict[Plan, Outlook]) -> tuple[Outlook | None, int]:
        """What to try for how many steps. With nodes: the next size that could be right, the other pacing and plain
        decoding, in turns. Without: the size that is nearest to paying."""
        nodes = plan.num_nodes
        if not nodes:
            drafted = [other for other in outlooks.values() if other.num_nodes]
            return max(drafted, key=_tokens_per_s, default=None), _PROBE_STEPS
        match self._look:
            case _Look.PLAIN:
                others = [other for other in outlooks.values() if not other.num_nodes]
                num_steps = _PLAIN_PROBE_STEPS
            case _Look.PACING:
                others = [other for other in outlooks.values() if other.num_nodes == nodes and other.plan != plan]
                num_steps = _PACING_PROBE_STEPS
            case _Look.SIZE:
                alike = [other for other in outlooks.values() if other.plan.pacing == plan.pacing]
                larger = [other for other in alike if nodes < other.num_nodes <= 2 * nodes]
                others, num_steps = sorted(larger, key=lambda other: other.num_nodes)[-1:], 1
        if not others:
            self._look = next(self._looks)
        return max(others, key=_tokens_per_s, default=None), num_steps


def _tokens_per_s(outlook: Outlook) -> float:
    return outlook.tokens_per_s


def turn_size(num_sessions: int) -> int:
    """How many of so many sessions a step takes when they go in turns."""
    return (num_sessions + 1) // 2


Budget = FixedBudget | MeasuredBudget
