"""The verifier's composition root: reads the settings, loads the target, and wires everything by hand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import sys
from pathlib import Path

import torch

from specgrove.config import run_with_config
from specgrove.rpc import GrpcServer, wait_for_signal
from specgrove.runtime.loading import load_model, model_folder
from specgrove.runtime.passing_thread import on_passing_thread
from specgrove.session import Heartbeat, Pod, PodRegistry, connect
from specgrove.telemetry import configure_logging, new_registry, start_metrics_server
from specgrove_verifier.assembly import build_admission, build_engine, context_len, load_limits, read_tokenizer
from specgrove_verifier.config import VerifierConfig
from specgrove_verifier.mailbox import DraftBudget
from specgrove_verifier.service import SERVICE_NAME, Identity, VerifierService, add_to_server

_log = logging.getLogger(__name__)
_POD_TTL_S = 5.0


async def serve(config: VerifierConfig) -> int:
    """Run until SIGTERM or SIGINT; 1 when the engine broke."""
    configure_logging("verifier", config.log_level)
    if config.threads:
        torch.set_num_threads(config.threads)
    registry = new_registry()
    _log.info("loading the target", extra={"model": config.model})
    folder = await on_passing_thread(model_folder, config.model)
    loaded = await on_passing_thread(
        load_model,
        folder,
        config.weights,
        config.device,
        decoder=config.decoder,
        attention=config.attention,
        cuda_graphs=config.cuda_graphs,
        cpu_kernels=config.cpu_kernels,
    )
    target = read_tokenizer(Path(folder), loaded.vocab_size)
    model_name = config.model_name or Path(config.model).name
    loop = asyncio.get_running_loop()
    broken = asyncio.Event()

    def report_broken() -> None:
        loop.call_soon_threadsafe(broken.set)

    _log.info("measuring the cost of a step")
    engine = await on_passing_thread(build_engine, config, loaded, registry, report_broken)
    pod_id = config.pod_id or f"{socket.gethostname()}-{secrets.token_hex(3)}"
    identity = Identity(
        verifier_id=pod_id,
        incarnation=secrets.token_hex(8),
        model_name=model_name,
        vocab_hash=target.vocab_hash,
        vocab_size=loaded.vocab_size,
        max_context_len=context_len(config, loaded),
        max_sessions=config.max_sessions,
        load_limits=load_limits(config),
        limits=DraftBudget(config.max_nodes, config.max_depth),
    )
    service = VerifierService(engine, build_admission(config, loaded, target, model_name), identity)
    server = GrpcServer(config.host, config.port)
    server.add(service, add_to_server, SERVICE_NAME)
    engine.start()
    port = await server.start()
    metrics_server = start_metrics_server(registry, config.host, config.metrics_port)
    _log.info("verifier is ready", extra={"port": port, "metrics_port": metrics_server.port})
    async with contextlib.AsyncExitStack() as stack:
        if config.redis_url:
            redis = connect(config.redis_url)
            stack.push_async_callback(redis.aclose)
            address = config.advertise_address or f"{config.host}:{port}"
            pod = Pod("verifier", pod_id, identity.incarnation, address, {"model": model_name})
            await stack.enter_async_context(Heartbeat(PodRegistry(redis, _POD_TTL_S), pod))
        stopping = asyncio.create_task(wait_for_signal())
        breaking = asyncio.create_task(broken.wait())
        await asyncio.wait({stopping, breaking}, return_when=asyncio.FIRST_COMPLETED)
        is_broken = breaking.done()
        for task in (stopping, breaking):
            task.cancel()
    _log.info("verifier stops")
    await server.stop(0.0 if is_broken else config.drain_s)
    await asyncio.to_thread(engine.stop)
    metrics_server.close()
    return 1 if is_broken else 0


def main() -> int:
    return run_with_config(VerifierConfig, "verifier", serve)


if __name__ == "__main__":
    sys.exit(main())
