"""Prometheus metrics: the classes services define theirs with, and the page that is scraped.

The one module that imports prometheus_client. A service builds one registry in its composition root and passes it
down; nothing uses the library's global registry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.exposition import choose_encoder

from specgrove.errors import ConfigError

__all__ = ["CollectorRegistry", "Counter", "Gauge", "Histogram"]


@dataclass(frozen=True, slots=True)
class RenderedMetrics:
    """A metrics page and its Content-Type."""

    body: bytes
    content_type: str


class MetricsServer:
    """A running metrics endpoint; `port` is the bound one."""

    def __init__(self, port: int, close: Callable[[], None]) -> None:
        self.port = port
        self._close = close

    def close(self) -> None:
        """Stops serving; may be called more than once."""
        close, self._close = self._close, lambda: None
        close()


def new_registry() -> CollectorRegistry:
    """A registry that already reports the process (CPU, memory, open files), the platform and the garbage collector."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def render_metrics(registry: CollectorRegistry, accept: str = "") -> RenderedMetrics:
    """The metrics page of `registry` in the format that the `Accept` header asks for."""
    encode, content_type = choose_encoder(accept)
    return RenderedMetrics(body=encode(registry), content_type=content_type)


def start_metrics_server(registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """Serves `registry` on http://host:port/metrics from a thread of its own; port 0 takes a free one.

    ConfigError that names the port if it cannot be bound.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError([f"cannot serve metrics on {host}:{port}: {error.strerror or error}"]) from error
    return MetricsServer(port=int(server.server_port), close=lambda: _close(server, thread))


def _close(server: WSGIServer, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join(timeout=5)
