"""What was expected of grants beside what they brought: the budget controller's books."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

_ERROR_WEIGHT = 0.01
_SLOWDOWN_WEIGHT = 0.1
_MOST_RATIO = 3.0  # a cycle that takes longer than so many times what was said had a pause in it
_LEAST_SLOWDOWN, _MOST_SLOWDOWN = 0.5, 3.0


class Pacing(StrEnum):
    """Which sessions a step takes."""

    TOGETHER = "together"  # all of them; their drafts are waited for
    IN_TURNS = "in_turns"  # those whose drafts are in, half of them at most: the others' drafts are made meanwhile


@dataclass(frozen=True, slots=True)
class Plan:
    """What the controller decides on; 0 nodes is plain decoding."""

    num_nodes: int = 0
    pacing: Pacing = Pacing.TOGETHER

    @property
    def manner(self) -> Pacing | None:
        """The pacing of drafts; None for plain decoding."""
        return self.pacing if self.num_nodes else None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a step under a plan is expected to bring."""

    plan: Plan = Plan()
    num_tokens: float = 0.0  # over all sessions of the step
    seconds: float = 0.0
    num_drafted: float = 0.0  # sessions of the step that drafts are expected for

    @property
    def num_nodes(self) -> int:
        return self.plan.num_nodes

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Cycle:
    """What lay between two grants: the step under the trees of the grant before, and the wait for the next trees."""

    num_tokens: int
    seconds: float


class Account:
    """Expected and observed tokens and seconds, as moving means; and by how much each pacing takes longer than said."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._outlook = Outlook()
        self._plan_before: Plan | None = None  # of the grant before: its trees run in the cycle of the present one
        self._num_sessions = self._num_plain = 0
        self._began_s = 0.0
        self._num_tokens = self._num_answers = 0
        self._is_pure = False  # the step of the present cycle reads no prompt
        self._means: tuple[float, ...] | None = None  # expected tokens and seconds, observed tokens and seconds
        # By manner and by the size of the batch, in powers of two; 0 is the size seen last, for those never seen.
        self._slowdown: dict[tuple[Pacing | None, int], float] = {}

    @property
    def num_nodes(self) -> int:
        """The grant in force."""
        return self._outlook.num_nodes

    @property
    def pacing(self) -> Pacing:
        """The pacing in force."""
        return self._outlook.plan.pacing

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

    def slowdown(self, plan: Plan, num_sessions: int) -> float:
        """How much longer cycles of `num_sessions` under such a plan took of late than costs and waits alone say.

        Whatever a step does besides its forward is in it, plain steps included, and what drafts that are made on the
        same cores cost the steps beside them.
        """
        of_size = self._slowdown.get((plan.manner, num_sessions.bit_length()))
        return self._slowdown.get((plan.manner, 0), 1.0) if of_size is None else of_size

    def begin(self, outlook: Outlook, num_sessions: int, num_plain: int = 0) -> Cycle:
        """A grant for `num_sessions` is made, `num_plain` of which want no drafts: the cycle under the one before is
        over, and was as returned."""
        now_s = self._clock()
        elapsed_s = now_s - self._began_s
        said = self._outlook
        # A cycle under trees that never came says nothing about what trees cost.
        is_as_said = not said.num_nodes or 2 * self._num_answers >= said.num_drafted
        is_alike = (num_sessions, num_plain) == (self._num_sessions, self._num_plain) and said.plan == self._plan_before
        if self._is_pure and is_alike and is_as_said and self._num_tokens and elapsed_s < _MOST_RATIO * said.seconds:
            seen = (said.num_tokens, said.seconds, float(self._num_tokens), elapsed_s)
            means = self._means or seen
            self._means = tuple(mean + _ERROR_WEIGHT * (value - mean) for mean, value in zip(means, seen, strict=True))
            self._learn_slowdown(said.plan, elapsed_s / said.seconds)
        cycle = Cycle(self._num_tokens, elapsed_s)
        self._plan_before, self._outlook = said.plan, outlook
        self._num_sessions, self._num_plain, self._began_s = num_sessions, num_plain, now_s
        self._num_tokens, self._num_answers, self._is_pure = 0, 0, False
        return cycle

    def add_answer(self) -> None:
        """Drafters have answered for one session, with a tree or with none."""
        self._num_answers += 1

    def add_pure_step(self) -> None:
        """The step of this cycle only decodes."""
        self._is_pure = True

    def add(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens

    def _learn_slowdown(self, plan: Plan, ratio: float) -> None:
        # What was said has the present slowdown in it already.
        slowdown = self.slowdown(plan, self._num_sessions) * (1.0 + _SLOWDOWN_WEIGHT * (ratio - 1.0))
        slowdown = min(max(slowdown, _LEAST_SLOWDOWN), _MOST_SLOWDOWN)
        self._slowdown[plan.manner, self._num_sessions.bit_length()] = self._slowdown[plan.manner, 0] = slowdown
