"""The gateway's Prometheus metrics; the registry is passed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specgrove.errors import status_of
from specgrove.telemetry import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 5.0)


def _grpc_status(error: Exception) -> str:
    return status_of(error).grpc


class GatewayMetrics:
    """Names that dashboards for LLM servers already know, under the prefix `specgrove:`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.time_to_first_token_s = Histogram(
            "specgrove:time_to_first_token_seconds",
            "From the accepted request to its first token.",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.inter_token_latency_s = Histogram(
            "specgrove:inter_token_latency_seconds",
            "Time per token after the first; the tokens of one step share its time.",
            buckets=_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self.e2e_request_latency_s = Histogram(
            "specgrove:e2e_request_latency_seconds",
            "From the accepted request to its last token.",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.num_requests_running = Gauge(
            "specgrove:num_requests_running", "Generations that hold a slot.", registry=registry
        )
        self.num_requests_waiting = Gauge(
            "specgrove:num_requests_waiting", "Requests that wait for a slot.", registry=registry
        )
        self.request_success = Counter(
            "specgrove:request_success",
            "Finished generations by reason: stop, length, or abort (the client left).",
            ("finished_reason",),
            registry=registry,
        )
        self.request_errors = Counter(
            "specgrove:request_errors", "Refused and failed requests by gRPC status.", ("status",), registry=registry
        )
        self.prompt_tokens = Counter("specgrove:prompt_tokens", "Tokens of accepted prompts.", registry=registry)
        self.generation_tokens = Counter("specgrove:generation_tokens", "Tokens committed.", registry=registry)
        self.generation_resumes = Counter(
            "specgrove:generation_resumes",
            "Times a generation was moved to another verifier, before or after its first token.",
            ("phase",),
            registry=registry,
        )
        self.verifiers_healthy = Gauge(
            "specgrove:verifiers_healthy", "Verifiers that answer and fit the tokenizer.", registry=registry
        )

    @contextmanager
    def count_errors(self, name_of: Callable[[Exception], str] = _grpc_status) -> Iterator[None]:
        """Counts an exception that leaves the block by its status; cancellation and a closed stream are none."""
        try:
            yield
        except Exception as error:
            self.request_errors.labels(name_of(error)).inc()
            raise
