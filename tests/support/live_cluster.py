"""The real services as processes, for the end-to-end and fault tests: models, drafters that come and go, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import grpc

from specgrove.proto.v1 import verifier_pb2, verifier_pb2_grpc
from specgrove_local import grpc_client
from specgrove_local.cluster import LocalCluster
from specgrove_local.models import ensure_target, shipped_ssms
from specgrove_local.pods import Pod
from support.gateway_client import CHANNEL_OPTIONS
from support.prompts import ROOT
from support.waiting import wait_until

CACHE_DIR = ROOT / ".cache"
DRAFTS = "specgrove:spec_decode_num_drafts_total"
STEPS = "specgrove:num_steps_total"
COMMITTED = "specgrove:generation_tokens_total"
RUNNING = "specgrove:num_requests_running"
# Draft ahead in all idle time, however little comes of it.
AHEAD_FLAGS = ("--ahead", "on", "--max-ahead-share", "1")
_METRICS_TIMEOUT_S = 5.0


def target_folder() -> Path:
    """The demo's target, fetched and converted on the first call of a fresh machine (a minute or two)."""
    return ensure_target(CACHE_DIR)


def ssm_flags() -> tuple[str, ...]:
    """Drafter flags: prompt lookup and the shipped SSMs."""
    return ("--prompt-lookup", "--ssm", ",".join(map(str, shipped_ssms())))


def read_metrics(url: str) -> dict[str, float]:
    """Every sample of a Prometheus page, by its name with labels."""
    with build_opener(ProxyHandler({})).open(url, timeout=_METRICS_TIMEOUT_S) as page:
        lines = page.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def metric(pod: Pod, name: str) -> float:
    """One sample of a pod's page; 0 while it has not been counted."""
    return read_metrics(pod.metrics_url).get(name, 0.0)


@contextmanager
def drafting(cluster: LocalCluster, *flags: str) -> Iterator[Pod]:
    """A drafter with `flags`, the only one of the cluster, attached for the block."""
    pod = cluster.add_drafter(*flags, num_expected=1)
    try:
        yield pod
    finally:
        pod.stop()
        for verifier in cluster.verifiers:
            wait_until(
                lambda address=verifier.address: grpc_client.num_drafters(address) == 0,  # type: ignore[misc]
                timeout_s=10.0,
                what=f"{verifier.name} noticed that {pod.name} left",
            )


def num_running(verifier: Pod) -> int:
    """Generations in the verifier's engine, as it describes itself."""
    with grpc.insecure_channel(verifier.address, options=CHANNEL_OPTIONS) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        return int(stub.Describe(verifier_pb2.DescribeRequest(), timeout=5).num_running)
