"""Whether to draft ahead now: as the setting says, within the bound on waste, and in automatic mode where it pays.

Drafting ahead is free on a machine of one's own. Where drafter and verifier share cores it slows the verification that
it hopes to use, and no count of hits tells which is larger. So automatic mode measures what both change: the time from
one sent draft of a session to its next one, in blocks of cycles with drafting ahead and blocks without,

    off | on | off off off off ... | on | off ...        each change of mode compares two neighbouring blocks
        └────┴── gain 2%, 3%, ...

and stays with the better mode, probing the other now and then. Neighbouring blocks see the same load, more or less, so
the load's own changes cancel out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from specgrove_drafter.jobs import SessionRef

BLOCK_CYCLES = 16
STAY_BLOCKS = 12  # in the better mode before the other is probed again
MIN_GAIN = 0.02  # of a cycle; less is not worth the heat
MAX_CYCLE_S = 2.0  # longer ones tell of a client or a queue, not of drafting
_MAX_REMEMBERED_GAINS = 4  # weight of the newest gain: 1/n up to 1/4
_FULL_MEMORY = 400.0  # forwards; beyond them the older half fades
_FEW_FORWARDS = 60.0  # the share of waste means nothing before


class AheadMode(StrEnum):
    OFF = "off"
    ON = "on"
    AUTO = "auto"


@dataclass(slots=True)
class WasteMeter:
    """Ahead forwards that served no base that came, as a share of all forwards of the recent past."""

    num_forwards: float = 0.0
    num_wasted: float = 0.0

    def observe(self, num_forwards: float, num_wasted: float = 0.0) -> None:
        self.num_forwards += num_forwards
        self.num_wasted += num_wasted
        if self.num_forwards > _FULL_MEMORY:
            self.num_forwards /= 2.0
            self.num_wasted /= 2.0

    @property
    def share(self) -> float:
        return self.num_wasted / max(self.num_forwards, _FEW_FORWARDS)


@dataclass(slots=True)
class CycleTrial:
    """Compares cycles with and without drafting ahead; `is_on` is the mode of the present block."""

    is_on: bool = False
    gain: float = 0.0  # how much shorter a cycle is with it, as a share (log ratio)
    num_blocks: int = 0
    _cycles: list[float] = field(default_factory=list)
    _blocks_left: int = 1  # in this mode, if it is the better one
    _last: tuple[bool, float] | None = None  # mode and median log cycle of the block before
    _num_gains: int = 0

    def observe(self, cycle_s: float) -> None:
        """Take in one cycle that lay within the present block."""
        if not 0.0 < cycle_s <= MAX_CYCLE_S:
            return
        self._cycles.append(math.log(cycle_s))
        if len(self._cycles) >= BLOCK_CYCLES:
            self._end_block(statistics.median(self._cycles))

    def _end_block(self, cycle: float) -> None:
        self._cycles.clear()
        self.num_blocks += 1
        if self._last is not None and self._last[0] != self.is_on:
            gain = self._last[1] - cycle if self.is_on else cycle - self._last[1]
            self._num_gains += 1
            self.gain += (gain - self.gain) / min(self._num_gains, _MAX_REMEMBERED_GAINS)
        self._last = (self.is_on, cycle)
        is_better_on = self._num_gains > 0 and self.gain > MIN_GAIN
        self._blocks_left -= 1
        if self.is_on != is_better_on:
            self.is_on, self._blocks_left = is_better_on, STAY_BLOCKS
        elif self._blocks_left <= 0:
            self.is_on = not self.is_on


class AheadGovernor:
    """Decides; told of every forward and every sent draft. Used by the engine's thread."""

    def __init__(self, mode: AheadMode, *, max_waste_share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.waste = WasteMeter()
        self.trial = CycleTrial()
        self._mode = mode
        self._max_waste_share = max_waste_share
        self._clock = clock
        self._sent: dict[SessionRef, tuple[float, int]] = {}  # when, and in which block

    @property
    def is_open(self) -> bool:
        """Whether idle time may be spent on drafting ahead."""
        if self._mode is AheadMode.OFF or self.waste.share > self._max_waste_share:
            return False
        return self._mode is AheadMode.ON or self.trial.is_on

    def draft_sent(self, session: SessionRef) -> None:
        """A draft of `session` has just left."""
        now = self._clock()
        before = self._sent.get(session)
        if self._mode is AheadMode.AUTO and before is not None and before[1] == self.trial.num_blocks:
            self.trial.observe(now - before[0])
        self._sent[session] = (now, self.trial.num_blocks)

    def forget(self, session: SessionRef) -> None:
        self._sent.pop(session, None)
