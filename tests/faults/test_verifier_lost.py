"""A verifier dies in mid-stream: the gateway goes on with another one, and the client sees the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specgrove_local.cluster import LocalCluster
from specgrove_local.options import ClusterOptions
from specgrove_local.pods import Pod
from specgrove_local.ports import PortPicker
from support.gateway_client import Ask, GatewayClient
from support.live_cluster import metric, num_running, read_metrics
from support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

_NUM_TOKENS = 48
_RESUMED = 'specgrove:generation_resumes_total{phase="decode"}'


@pytest.fixture(scope="module")
def cluster(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = ClusterOptions(
        target=target,
        http_port=PortPicker().any_free(),
        num_verifiers=2,
        num_drafters=1,
        run_dir=tmp_path_factory.mktemp("failover-run"),
        verifier_flags=("--budget", "fixed"),
        drafter_flags=("--random-member",),  # cheap, and a tree in every step
    )
    with LocalCluster(options) as running:
        yield running


def test_sigkill_of_a_verifier_in_mid_stream_keeps_every_stream_going_with_the_same_tokens(
    cluster: LocalCluster, prompts: list[tuple[int, ...]]
) -> None:
    asks = [
        Ask(prompt, _NUM_TOKENS, temperature, seed=11, ignore_eos=True)
        for prompt, temperature in zip(prompts, (0.0, 0.8, 1.0, 0.0), strict=True)
    ]
    with GatewayClient(cluster.gateway_grpc_address) as client:
        plain = client.ask_all([replace(ask, speculation=False) for ask in asks])
        streams = [client.start(ask) for ask in asks]
        for stream in streams:
            stream.wait_for_tokens(5)
        victim = _busiest(cluster.verifiers)
        num_victims = num_running(victim)
        victim.kill()
        answers = [stream.answer() for stream in streams]
        resumed = read_metrics(f"{cluster.gateway_http_url}/metrics").get(_RESUMED, 0.0)
        print(f"{num_victims} streams on the killed verifier, {resumed:.0f} resumed on the other")
        assert num_victims > 0
        assert resumed >= 1
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
        assert [answer.text for answer in answers] == [answer.text for answer in plain]
        assert client.ask(asks[0]).token_ids == plain[0].token_ids, "the next request is answered by the survivor"
    survivor = next(pod for pod in cluster.verifiers if pod is not victim)
    wait_until(lambda: num_running(survivor) == 0, timeout_s=5, what="the survivor has nothing left to do")
    assert metric(survivor, "specgrove:generation_tokens_total") > 0


def _busiest(verifiers: list[Pod]) -> Pod:
    return max(verifiers, key=num_running)
