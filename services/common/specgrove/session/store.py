"""Placement of sessions: which verifier runs a session, since which epoch, and how far it has come.

    session:{id}  hash  verifier_id, incarnation, epoch, committed_len, last_used_s      TTL after the last use

Taking a session over bumps its epoch; whoever holds a lower one must stop speaking for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from specgrove.errors import InvalidInput
from specgrove.session.connection import Redis, redis_call
from specgrove.session.scripts import CLAIM, RECORD_PROGRESS, RELEASE

DEFAULT_SESSION_TTL_S = 3600.0
MAX_SESSION_ID_CHARS = 256
_FIELDS = ("verifier_id", "incarnation", "epoch", "committed_len", "last_used_s")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a session lives."""

    session_id: str
    verifier_id: str
    incarnation: str  # of the verifier: a restarted one is another owner
    epoch: int  # grows with every claim; not counted from 1
    committed_len: int  # tokens, as last recorded: may lag behind the stream
    last_used_s: float  # Unix time by the clock of Redis


class SessionStore:
    """Reads and changes placements; each change is one atomic script on one key.

    Every method raises PeerUnavailable, within the timeout of the connection, if Redis is away.
    """

    def __init__(self, redis: Redis, ttl_s: float = DEFAULT_SESSION_TTL_S) -> None:
        if ttl_s <= 0:
            raise ValueError(f"ttl_s must be positive, got {ttl_s}")
        self._redis = redis
        self._ttl_ms = max(1, round(ttl_s * 1000))

    async def claim(self, session_id: str, verifier_id: str, incarnation: str) -> Placement:
        """The placement after `verifier_id` has become the owner, with an epoch above every earlier one.

        Claiming a session again from the same verifier bumps the epoch too: a new call fences off an old one.
        """
        key = _key(session_id)
        async with redis_call(self._redis, "claim the session"):
            reply = await self._redis.eval(CLAIM, 1, key, verifier_id, incarnation, str(self._ttl_ms))
        return _placement(session_id, reply)

    async def lookup(self, session_id: str) -> Placement | None:
        """The placement of `session_id`; None if nobody owns it or the record cannot be read."""
        key = _key(session_id)
        async with redis_call(self._redis, "look the session up"):
            values = await self._redis.hmget(key, list(_FIELDS))
        if any(value is None for value in values):
            return None
        try:
            return _placement(session_id, cast(list[str], values))
        except ValueError:
            return None

    async def record_progress(self, session_id: str, epoch: int, committed_len: int) -> bool:
        """False if a newer owner has taken the session: the caller must stop speaking for it.

        True otherwise, also if the session has expired or Redis has lost it, since then nobody newer is known. The
        committed length never goes back within an epoch. Call it every second or so, not for every token.
        """
        key = _key(session_id)
        arguments = [str(epoch), str(committed_len), str(self._ttl_ms)]
        async with redis_call(self._redis, "record the session's progress"):
            return bool(await self._redis.eval(RECORD_PROGRESS, 1, key, *arguments))

    async def release(self, session_id: str, epoch: int | None = None) -> bool:
        """Forgets the session. With `epoch` only if no newer owner has taken it; False if one has."""
        key = _key(session_id)
        async with redis_call(self._redis, "release the session"):
            return bool(await self._redis.eval(RELEASE, 1, key, "" if epoch is None else str(epoch)))


def _key(session_id: str) -> str:
    if not 0 < len(session_id) <= MAX_SESSION_ID_CHARS or not session_id.isprintable():
        raise InvalidInput(f"session_id must have 1 to {MAX_SESSION_ID_CHARS} printable characters", field="session_id")
    return f"session:{session_id}"


def _placement(session_id: str, values: Sequence[str]) -> Placement:
    verifier_id, incarnation, epoch, committed_len, last_used_s = values
    return Placement(
        session_id=session_id,
        verifier_id=verifier_id,
        incarnation=incarnation,
        epoch=int(epoch),
        committed_len=int(committed_len),
        last_used_s=float(last_used_s),
    )
