"""Client channels to another pod, for an event loop and for threads."""

from __future__ import annotations

import grpc
import grpc.aio

from specgrove.errors import ConfigError
from specgrove.rpc.deadlines import DEFAULT_UNARY_TIMEOUT_S, UnaryDeadline
from specgrove.rpc.limits import DEFAULT_MAX_MESSAGE_BYTES, channel_options


def open_channel(
    target: str,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    *,
    unary_timeout_s: float = DEFAULT_UNARY_TIMEOUT_S,
) -> grpc.aio.Channel:
    """A channel to `target` (host:port) with keep-alive, message caps, quick reconnects and no proxy.

    Nothing is dialled before the first call. A unary call without a timeout of its own gets `unary_timeout_s`; streams
    are as long as a generation, so their callers choose. The owner closes the channel. ConfigError for an empty target.
    """
    _refuse_empty(target)
    return grpc.aio.insecure_channel(
        target, options=channel_options(max_message_bytes), interceptors=[UnaryDeadline(unary_timeout_s)]
    )


def open_blocking_channel(target: str, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> grpc.Channel:
    """The same for code without an event loop; every call chooses its own timeout."""
    _refuse_empty(target)
    return grpc.insecure_channel(target, options=channel_options(max_message_bytes))


def _refuse_empty(target: str) -> None:
    if not target.strip():
        raise ConfigError(["a gRPC address is empty; write host:port"])
