"""The drafter's process: settings, parts, health, and a graceful end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from specgrove.config import run_with_config
from specgrove.rpc import GrpcServer, wait_for_signal
from specgrove.runtime.passing_thread import on_passing_thread
from specgrove.session import Redis, connect
from specgrove.telemetry import CollectorRegistry, configure_logging, new_registry, start_metrics_server
from specgrove_drafter.config import DrafterConfig

if TYPE_CHECKING:
    from specgrove_drafter.drafter import Drafter

_log = logging.getLogger("specgrove_drafter")

STOP_GRACE_S = 2.0


async def serve(config: DrafterConfig) -> None:
    """Run until SIGTERM or SIGINT. The health port answers NOT_SERVING until the models are loaded."""
    configure_logging("drafter", config.log_level)
    registry = new_registry()
    async with AsyncExitStack() as stack:
        server = GrpcServer(config.host, config.port)
        server.set_serving(False)
        port = await server.start()
        stack.push_async_callback(server.stop, grace_s=STOP_GRACE_S)
        page = start_metrics_server(registry, config.host, config.metrics_port)
        stack.callback(page.close)
        redis = None
        if config.redis_url is not None:
            redis = connect(config.redis_url)
            stack.push_async_callback(redis.aclose)
        stopping = asyncio.create_task(wait_for_signal(), name="signals")
        stack.callback(stopping.cancel)
        address = config.advertise_address or f"{config.host}:{port}"
        drafter = await on_passing_thread(_build, config, registry, address, redis)
        await drafter.start()
        stack.push_async_callback(drafter.stop)
        server.set_serving(True)
        _log.info("ready", extra={"port": port, "metrics_port": page.port, "members": drafter.ensemble.member_names})
        received = await stopping
        _log.info("stopping", extra={"signal": received.name})
        server.set_serving(False)
    _log.info("stopped")


def _build(config: DrafterConfig, registry: CollectorRegistry, address: str, redis: Redis | None) -> Drafter:
    # Imported here, in a thread: torch and transformers take seconds, in which health must be answered, and wrong
    # settings and --help must not wait for them.
    from specgrove_drafter.build import build_drafter

    pod_id = config.pod_id or f"drafter-{socket.gethostname()}-{os.getpid()}"
    return build_drafter(config, registry, pod_id=pod_id, address=address, redis=redis)


def main() -> None:
    raise SystemExit(run_with_config(DrafterConfig, "drafter", serve))


if __name__ == "__main__":
    main()
