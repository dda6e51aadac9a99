"""Who runs which session, and which pods are alive: placement and discovery on Redis.

redis enters specgrove through `session.connection` alone.
"""

from specgrove.session.connection import Redis, connect, redis_call
from specgrove.session.heartbeat import Heartbeat
from specgrove.session.pods import Pod, PodRegistry
from specgrove.session.store import Placement, SessionStore

__all__ = [
    "Heartbeat",
    "Placement",
    "Pod",
    "PodRegistry",
    "Redis",
    "SessionStore",
    "connect",
    "redis_call",
]
