"""Session placement that never stands in the way: Redis when it is there, the local clock when it is not.

Redis owns placement, but a generation must not notice when it blinks. Epochs are clock milliseconds in the store and
here, so an epoch made up during an outage is still above every earlier one and below every later one.
"""

from __future__ import annotations

import asyncio
import logging
import time

from specgrove.errors import SpecgroveError
from specgrove.session import SessionStore

_log = logging.getLogger(__name__)
_PROGRESS_PERIOD_S = 1.0
_AWAY_S = 2.0  # after a failure Redis is not asked for so long: requests must not queue behind its timeouts
_MAX_PENDING = 10_000
_EPOCHS_END = 2**53  # the scripts of the store count in doubles, which stop growing there


class Placements:
    """Looks up, claims and notes; `store` None means no Redis. `run` writes the notes in the background."""

    def __init__(self, store: SessionStore | None) -> None:
        self._store = store
        self._away_until = 0.0
        self._last_own_epoch = 0  # made up here
        self._progress: dict[str, tuple[int, int]] = {}  # session_id -> (epoch, committed_len), newest wins

    async def sticky_verifier(self, session_id: str) -> str | None:
        """The verifier that holds the session, if anybody knows."""
        store = self._reachable_store()
        if store is None:
            return None
        try:
            placement = await store.lookup(session_id)
        except SpecgroveError as error:
            self._note_away(error)
            return None
        except ValueError:
            return None  # a record that is not ours
        return None if placement is None else placement.verifier_id

    async def claim(self, session_id: str, verifier_id: str, incarnation: str) -> int:
        """The epoch under which `verifier_id` runs the session from now on."""
        store = self._reachable_store()
        if store is not None:
            try:
                placement = await store.claim(session_id, verifier_id, incarnation)
            except SpecgroveError as error:
                self._note_away(error)
            except ValueError as error:
                _log.warning("the record of session %s cannot be read: %s", session_id, error)
            else:
                if 0 <= placement.epoch < _EPOCHS_END:
                    # Above what was made up here during an outage, should our clock run ahead of that of Redis.
                    return max(placement.epoch, self._last_own_epoch + 1)
                _log.warning("the record of session %s holds the impossible epoch %d", session_id, placement.epoch)
        self._last_own_epoch = max(self._last_own_epoch + 1, time.time_ns() // 1_000_000)
        return self._last_own_epoch

    def note_progress(self, session_id: str, epoch: int, committed_len: int) -> None:
        """Remember how far a session has come; written within about a second, or never when Redis is away."""
        if self._store is not None and (session_id in self._progress or len(self._progress) < _MAX_PENDING):
            self._progress[session_id] = (epoch, committed_len)

    async def run(self) -> None:
        """Write notes until cancelled."""
        while True:
            await asyncio.sleep(_PROGRESS_PERIOD_S)
            await self.flush()

    async def flush(self) -> None:
        """Write the notes taken so far."""
        pending, self._progress = self._progress, {}
        for session_id, (epoch, committed_len) in pending.items():
            store = self._reachable_store()
            if store is None:
                return
            try:
                if not await store.record_progress(session_id, epoch, committed_len):
                    _log.info("session %s has a newer owner than epoch %d", session_id, epoch)
            except SpecgroveError as error:
                self._note_away(error)

    def _reachable_store(self) -> SessionStore | None:
        return self._store if time.monotonic() >= self._away_until else None

    def _note_away(self, error: SpecgroveError) -> None:
        if time.monotonic() >= self._away_until + 10 * _AWAY_S:
            _log.warning("session placement goes on without Redis: %s", error)
        self._away_until = time.monotonic() + _AWAY_S
