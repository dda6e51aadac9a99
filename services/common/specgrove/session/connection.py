"""The one door to Redis: connections, a deadline for every call, and its exceptions turned into ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from specgrove.errors import ConfigError, PeerUnavailable

__all__ = ["Redis", "connect", "redis_call"]

DEFAULT_TIMEOUT_S = 0.5
MAX_CONNECTIONS = 32


def connect(url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Redis:
    """A Redis client for `url` (redis://, rediss:// or unix://). Nothing is dialled before the first command.

    `timeout_s` is what each `redis_call` gets in all: wait for a pooled connection, dialling, command and answer. Make
    every command inside one. The owner closes the client with `await redis.aclose()`. ConfigError for a malformed URL.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # Not the library's own timeout for commands: it goes through asyncio.wait_for, which before Python 3.12 can
            # swallow the cancellation of its caller. `redis_call` has the deadline.
            socket_timeout=None,
            socket_keepalive=True,
            decode_responses=True,
            encoding_errors="replace",  # a foreign value must be an unreadable record, not a crash
            # One retry, without a pause: enough to replace a pooled connection that a restarted Redis has closed. The
            # library's own default would hold a request for many seconds.
            retry=Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,)),
        )
    except ValueError as error:
        raise ConfigError([f"Redis URL is wrong: {error}"]) from error
    return Redis.from_pool(pool)


@asynccontextmanager
async def redis_call(redis: Redis, what: str) -> AsyncIterator[None]:
    """The frame for commands on `redis`: done within its timeout, or PeerUnavailable says why `what` failed."""
    try:
        async with asyncio.timeout(_timeout_s(redis)):
            yield
    except (exceptions.AuthenticationError, exceptions.NoPermissionError) as error:
        raise PeerUnavailable(f"cannot {what}: Redis refuses the credentials in the Redis URL ({error})") from error
    except (exceptions.TimeoutError, TimeoutError) as error:
        raise PeerUnavailable(f"cannot {what}: Redis did not answer in time") from error
    except (exceptions.RedisError, OSError) as error:
        raise PeerUnavailable(f"cannot {what}: Redis is not usable ({error})") from error


def _timeout_s(redis: Redis) -> float:
    """The timeout that `connect` was given; the default one for a client that was made elsewhere."""
    timeout_s = getattr(redis.connection_pool, "timeout", None)
    return timeout_s if isinstance(timeout_s, int | float) else DEFAULT_TIMEOUT_S
