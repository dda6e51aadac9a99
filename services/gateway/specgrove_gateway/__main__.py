"""The gateway process, built by hand from top to bottom."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from specgrove.config import run_with_config
from specgrove.rpc import GrpcServer, open_channel, wait_for_signal
from specgrove.session import PodRegistry, Redis, SessionStore, connect
from specgrove.telemetry import configure_logging, new_registry
from specgrove.text import Tokenizer
from specgrove_gateway.admission import Admission
from specgrove_gateway.choices import ChoiceGenerator
from specgrove_gateway.config import GatewayConfig
from specgrove_gateway.generator import Generator
from specgrove_gateway.metrics import GatewayMetrics
from specgrove_gateway.openai_http.app import build_app
from specgrove_gateway.openai_http.endpoints import GenerationEndpoints
from specgrove_gateway.openai_http.server import HttpServer
from specgrove_gateway.openai_http.status_endpoints import StatusEndpoints
from specgrove_gateway.openai_http.token_endpoints import TokenEndpoints
from specgrove_gateway.placements import Placements
from specgrove_gateway.request_builder import RequestBuilder
from specgrove_gateway.router import Router
from specgrove_gateway.service import GATEWAY_SERVICE_NAME, GatewayServicer, VerifierClient, add_gateway_servicer
from specgrove_gateway.tokenization import Tokenization
from specgrove_gateway.verifier_pool import VerifierPool

_log = logging.getLogger(__name__)
_READINESS_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a running gateway listens."""

    http: int
    grpc: int


async def serve(config: GatewayConfig) -> None:
    """Runs the gateway until SIGTERM or SIGINT; running answers then get `drain_s` to end."""
    configure_logging("gateway", config.log_level)
    async with running(config) as ports:
        _log.info("gateway listens", extra={"host": config.host, "http_port": ports.http, "grpc_port": ports.grpc})
        received = await wait_for_signal()
        _log.info("%s: draining for at most %g s", received.name, config.drain_s)


@contextlib.asynccontextmanager
async def running(config: GatewayConfig) -> AsyncIterator[Ports]:
    """A gateway that listens inside the block and drains at its end."""
    tokenizer = Tokenizer.load(config.tokenizer)
    registry = new_registry()
    metrics = GatewayMetrics(registry)
    redis = connect(config.redis_url) if config.redis_url else None
    pool = VerifierPool(
        config.verifiers,
        connect=lambda address: VerifierClient(open_channel(address)),
        vocab_hash=tokenizer.vocab_hash,
        discover=None if redis is None else _discovery(PodRegistry(redis, config.pod_ttl_s)),
    )
    placements = Placements(None if redis is None else SessionStore(redis, config.session_ttl_s))
    router = Router(
        pool,
        placements,
        metrics,
        max_attempts=config.max_attempts,
        failover_wait_s=config.failover_wait_s,
        request_timeout_s=config.request_timeout_s,
    )
    admission = Admission(config.max_running, config.max_waiting, config.max_wait_s)
    metrics.num_requests_running.set_function(lambda: admission.num_running)
    metrics.num_requests_waiting.set_function(lambda: admission.num_waiting)
    metrics.verifiers_healthy.set_function(lambda: len(pool.healthy))
    choices = ChoiceGenerator(Generator(tokenizer, router, admission, metrics), admission)
    builder = RequestBuilder(tokenizer, config.model_name, pool.limits)
    tokenization = Tokenization(tokenizer, builder)

    # Read a little more than is accepted: the servicer's refusal names the field, gRPC's own does not.
    grpc_server = GrpcServer(config.host, config.grpc_port, max_message_bytes=16 * config.max_body_bytes)
    grpc_server.set_serving(False)  # until a verifier answers
    servicer = GatewayServicer(builder, choices, tokenization, metrics, config.max_body_bytes)
    grpc_server.add(servicer, add_gateway_servicer, GATEWAY_SERVICE_NAME)
    generation = GenerationEndpoints(
        builder, choices, admission, metrics, max_body_bytes=config.max_body_bytes, heartbeat_s=config.heartbeat_s
    )
    tokens = TokenEndpoints(tokenization, admission, metrics, max_body_bytes=config.max_body_bytes)
    status = StatusEndpoints(builder, registry, lambda: pool.is_ready and not grpc_server.is_draining, time.time())
    http_server = HttpServer(
        build_app(generation, tokens, status),
        config.host,
        config.http_port,
        config.drain_s,
        max_requests=config.max_running + config.max_waiting,
    )

    async with contextlib.AsyncExitStack() as stack:
        if redis is not None:
            stack.push_async_callback(_close_redis, redis)
        stack.push_async_callback(placements.flush)
        await _run_beside(stack, placements.run(), "placements")
        await _run_beside(stack, pool.run(), "verifier pool")
        grpc_port = await grpc_server.start()
        stack.push_async_callback(grpc_server.stop, 0.0)
        http_port = await http_server.start()
        stack.push_async_callback(http_server.stop)
        await _run_beside(stack, _mirror_readiness(pool, grpc_server), "readiness")
        yield Ports(http_port, grpc_port)
        # Both faces drain side by side; the callbacks above then find nothing left to do.
        await asyncio.gather(http_server.stop(), grpc_server.stop(config.drain_s))


def _discovery(pods: PodRegistry) -> Callable[[], Awaitable[Collection[str]]]:
    async def verifier_addresses() -> Collection[str]:
        return [pod.address for pod in await pods.list_pods("verifier")]

    return verifier_addresses


async def _mirror_readiness(pool: VerifierPool, server: GrpcServer) -> None:
    """gRPC health says what /ready says."""
    shown = False
    while True:
        if shown != pool.is_ready:
            shown = pool.is_ready
            server.set_serving(shown)
        await asyncio.sleep(_READINESS_PERIOD_S)


async def _run_beside(stack: contextlib.AsyncExitStack, work: Coroutine[Any, Any, None], name: str) -> None:
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


async def _close_redis(redis: Redis) -> None:
    await redis.aclose()


def main() -> int:
    """Entry point of `specgrove-gateway`."""
    return run_with_config(GatewayConfig, "gateway", serve)


if __name__ == "__main__":
    sys.exit(main())
