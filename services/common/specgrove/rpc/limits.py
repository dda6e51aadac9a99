"""Message caps and keep-alive: the same on both ends, never unlimited, never left to the library's defaults."""

from __future__ import annotations

DEFAULT_MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MAX_METADATA_BYTES = 16 * 1024

# A silent peer (power loss, SIGSTOP, a dropped flow in a NAT) is noticed within 15 s.
KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
# The server tolerates pings twice as often as our own clients send them.
MIN_PING_INTERVAL_MS = 5_000

# A pod that comes back must be dialled again within the two seconds in which a new drafter has to be of use.
INITIAL_BACKOFF_MS = 100
MIN_BACKOFF_MS = 1_000
MAX_BACKOFF_MS = 1_000

Options = list[tuple[str, int]]


def _shared_options(max_message_bytes: int) -> Options:
    if max_message_bytes < 1:
        raise ValueError(f"max_message_bytes must be positive, got {max_message_bytes}")
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # gRPC 1.85 waits this long for the answer to a ping (its default is a minute) and ignores the line above.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(max_message_bytes: int) -> Options:
    """Channel arguments of a server."""
    return [
        *_shared_options(max_message_bytes),
        # Off, so that a second process on the same port fails instead of silently taking half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ]


def channel_options(max_message_bytes: int) -> Options:
    """Channel arguments of a client."""
    return [
        *_shared_options(max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", INITIAL_BACKOFF_MS),
        ("grpc.min_reconnect_backoff_ms", MIN_BACKOFF_MS),
        ("grpc.max_reconnect_backoff_ms", MAX_BACKOFF_MS),
        # Two channels to one address must not share one connection and its back-off.
        ("grpc.use_local_subchannel_pool", 1),
        # Pods talk to pods: a proxy named in the environment is not meant for them.
        ("grpc.enable_http_proxy", 0),
    ]
