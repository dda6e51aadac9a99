"""What operators see: JSON log lines with request and session ids, and Prometheus metrics.

prometheus_client enters specgrove through `telemetry.metrics` alone; services import the metric classes from here.
"""

from specgrove.telemetry.log_context import current_log_context, log_context
from specgrove.telemetry.logs import configure_logging
from specgrove.telemetry.metrics import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    MetricsServer,
    RenderedMetrics,
    new_registry,
    render_metrics,
    start_metrics_server,
)

__all__ = [
    "CollectorRegistry",
    "Counter",
    "Gauge",
    "Histogram",
    "MetricsServer",
    "RenderedMetrics",
    "configure_logging",
    "current_log_context",
    "log_context",
    "new_registry",
    "render_metrics",
    "start_metrics_server",
]
