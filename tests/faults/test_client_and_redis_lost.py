"""Nobody works for a client that left; and when Redis goes, running generations do not notice."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from specgrove_local.cluster import LocalCluster
from specgrove_local.options import ClusterOptions
from specgrove_local.ports import PortPicker
from support.gateway_client import Ask, GatewayClient
from support.live_cluster import DRAFTS, RUNNING, metric, num_running
from support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

_LONG = 3000  # tokens: minutes, had the client stayed
# The gateway hears of the client, the verifier of the gateway, and one of its steps ends: some 100 ms in all on an idle
# machine. The rest, and the further attempts, are for the noise of a busy one.
_RELEASE_S = 1.0
_ATTEMPTS = 3
# Redis timeouts are seconds, if anything in the path of a token waited for one.
_NOISE_S = 0.5


@pytest.fixture(scope="module")
def cluster(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = ClusterOptions(
        target=target,
        http_port=PortPicker().any_free(),
        num_drafters=1,
        run_dir=tmp_path_factory.mktemp("lost-run"),
        verifier_flags=("--budget", "fixed"),
        drafter_flags=("--random-member",),  # cheap, and a tree in every step
    )
    with LocalCluster(options) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[GatewayClient]:
    with GatewayClient(cluster.gateway_grpc_address) as gateway:
        yield gateway


def _leave_grpc_stream(cluster: LocalCluster, prompt: tuple[int, ...]) -> float:
    with GatewayClient(cluster.gateway_grpc_address) as client:
        stream = client.start(Ask(prompt, _LONG, ignore_eos=True))
        stream.wait_for_tokens(3)
        assert num_running(cluster.verifiers[0]) == 1
        left_at = time.monotonic()
        stream.cancel()
    return left_at


def _leave_sse_stream(cluster: LocalCluster, prompt: tuple[int, ...]) -> float:
    body = {"prompt": list(prompt), "max_tokens": _LONG, "stream": True, "ignore_eos": True}
    url = f"{cluster.gateway_http_url}/v1/completions"
    with httpx.Client(timeout=60, trust_env=False) as http, http.stream("POST", url, json=body) as answer:
        lines = answer.iter_lines()
        for _ in range(6):
            next(lines)
        assert num_running(cluster.verifiers[0]) == 1
        return time.monotonic()


def _leave_while_waiting_for_a_whole_answer(cluster: LocalCluster, prompt: tuple[int, ...]) -> float:
    address = urlsplit(cluster.gateway_http_url)
    body = f'{{"prompt": {list(prompt)}, "max_tokens": {_LONG}, "ignore_eos": true}}'.encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((str(address.hostname), address.port or 80), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: num_running(cluster.verifiers[0]) == 1, timeout_s=30, what="the generation runs")
        return time.monotonic()


@pytest.mark.parametrize(
    "leave",
    [_leave_grpc_stream, _leave_sse_stream, _leave_while_waiting_for_a_whole_answer],
    ids=["gRPC stream", "SSE stream", "HTTP without streaming"],
)
def test_client_that_leaves_frees_the_verifier_within_a_step(
    leave: Callable[[LocalCluster, tuple[int, ...]], float], cluster: LocalCluster, prompts: list[tuple[int, ...]]
) -> None:
    verifier = cluster.verifiers[0]
    took_s: list[float] = []
    while not took_s or (took_s[-1] > _RELEASE_S and len(took_s) < _ATTEMPTS):
        left_at = leave(cluster, prompts[0])
        wait_until(lambda: num_running(verifier) == 0, timeout_s=10, what="the verifier dropped the generation")
        took_s.append(time.monotonic() - left_at)
        print(f"freed after {took_s[-1]:.3f} s")
    assert took_s[-1] <= _RELEASE_S
    wait_until(lambda: metric(verifier, RUNNING) == 0, timeout_s=2, what=f"the metric {RUNNING} shows it")


def test_redis_killed_in_mid_stream_is_not_noticed_by_a_running_generation(
    cluster: LocalCluster, client: GatewayClient, prompts: list[tuple[int, ...]]
) -> None:
    ask = Ask(prompts[1], 100, temperature=0.8, seed=3, ignore_eos=True)
    began = time.monotonic()
    undisturbed = client.ask(ask)
    usual_elapsed_s = time.monotonic() - began
    stream = client.start(ask)
    stream.wait_for_tokens(5)
    assert cluster.redis is not None
    killed_at = time.monotonic()
    cluster.redis.kill()
    answer = stream.answer()
    assert answer.token_ids == undisturbed.token_ids
    assert answer.chunks[-1][0] > killed_at, "the stream was over before Redis died"
    gap_s, usual_s = answer.longest_gap_s(after=killed_at), undisturbed.longest_gap_s()
    print(f"longest gap without Redis {gap_s:.3f} s, before {usual_s:.3f} s")
    assert gap_s <= usual_s + _NOISE_S

    drafted = metric(cluster.verifiers[0], DRAFTS)
    began = time.monotonic()
    again = client.ask(ask)
    print(f"a new generation took {time.monotonic() - began:.2f} s, with Redis {usual_elapsed_s:.2f} s")
    assert again.token_ids == undisturbed.token_ids, "new generations run without Redis too"
    assert metric(cluster.verifiers[0], DRAFTS) > drafted, "and are drafted for"
