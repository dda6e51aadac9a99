"""The launcher's cluster: it comes up whole or not at all, says why, and leaves nothing behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from specgrove_local.cluster import LocalCluster
from specgrove_local.errors import ChildDied, LocalError, NotReady
from specgrove_local.grpc_client import is_serving, num_drafters
from specgrove_local.http_client import is_ok
from specgrove_local.options import ClusterOptions
from specgrove_local.ports import is_free
from specgrove_local.redis_server import answers_ping

MakeOptions = Callable[..., ClusterOptions]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_everything_is_healthy_once_started_and_gone_once_stopped(make_options: MakeOptions) -> None:
    lines: list[str] = []
    with LocalCluster(make_options(num_verifiers=2, num_drafters=2), report=lines.append) as cluster:
        assert answers_ping(cluster.redis_url)
        assert is_ok(f"{cluster.gateway_http_url}/health")
        for pod in (*cluster.verifiers, *cluster.drafters):
            assert is_serving(pod.address, pod.service)
        names = [process.name for process in cluster.processes]
        pids = [process.pid for process in cluster.processes]
    assert names == ["redis", "verifier-0", "verifier-1", "drafter-0", "drafter-1", "gateway"]
    assert [process.exit_status for process in cluster.processes] == [0] * len(names)
    assert not any(is_alive(pid) for pid in pids)
    assert [line.split()[0].rstrip(":") for line in lines][:3] == ["redis", "verifier-0", "verifier-1"]


def test_services_get_their_share_of_the_cores(make_options: MakeOptions) -> None:
    cluster = LocalCluster(make_options(verifier_threads=3, num_drafters=1))
    environment = cluster._commands.environment("verifier")
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment.get("OMP_WAIT_POLICY") == os.environ.get("OMP_WAIT_POLICY")
    assert cluster._commands.environment("gateway")["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("kind", ["verifier", "drafter", "gateway"])
def test_a_child_that_dies_at_start_fails_the_start_at_once_with_its_last_words(
    make_options: MakeOptions, kind: str
) -> None:
    began = time.monotonic()
    cluster = LocalCluster(make_options({kind: "dies"}))
    with pytest.raises(ChildDied, match=f"{kind}.* exited with status 1(.|\n)*the model folder is on fire"):
        cluster.start()
    assert time.monotonic() - began < 15
    assert not any(process.is_running for process in cluster.processes)


def test_a_child_that_never_becomes_healthy_is_named_with_its_log(make_options: MakeOptions) -> None:
    cluster = LocalCluster(make_options({"verifier": "sulks"}, start_timeout_s=2.5))
    with pytest.raises(NotReady, match="verifier-0(.|\n)*VERIFIER stand-in: sulks"):
        cluster.start()
    assert not any(process.is_running for process in cluster.processes)


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(make_options: MakeOptions) -> None:
    options = make_options({"drafter": "stubborn"}, stop_grace_s=0.5)
    with LocalCluster(options) as cluster:
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert cluster.drafters[0].process.exit_status == -9


def test_a_suspended_pod_answers_nobody_until_resumed_and_stops_cleanly(make_options: MakeOptions) -> None:
    with LocalCluster(make_options(num_drafters=2)) as cluster:
        for drafter in cluster.drafters:
            drafter.suspend()
        assert not is_serving(cluster.drafters[0].address, "", timeout_s=0.3)
        cluster.drafters[0].resume()
        assert is_serving(cluster.drafters[0].address, "", timeout_s=5)
    assert [drafter.process.exit_status for drafter in cluster.drafters] == [0, 0]


def test_a_killed_pod_is_no_accident_and_can_be_joined_by_a_new_one(make_options: MakeOptions) -> None:
    with LocalCluster(make_options()) as cluster:
        cluster.drafters[0].kill()
        cluster.raise_if_any_died()
        cluster.add_drafter()
        cluster.add_verifier()
        assert [pod.process.is_running for pod in cluster.drafters] == [False, True]
        assert [pod.name for pod in cluster.verifiers] == ["verifier-0", "verifier-1"]
        assert num_drafters(cluster.verifiers[1].address) == 2


def test_a_pod_that_crashes_later_is_noticed(make_options: MakeOptions) -> None:
    with LocalCluster(make_options({"drafter": "crashes:3"})) as cluster:
        cluster.drafters[0].process.raise_if_dead()
        deadline = time.monotonic() + 15
        with pytest.raises(ChildDied, match="that was enough"):
            while time.monotonic() < deadline:
                cluster.raise_if_any_died()
                time.sleep(0.05)


def test_without_a_gateway_only_the_rest_is_started(make_options: MakeOptions) -> None:
    with LocalCluster(make_options(with_gateway=False, num_drafters=0)) as cluster:
        assert [process.name for process in cluster.processes] == ["redis", "verifier-0"]
        with pytest.raises(LocalError, match="no gateway"):
            _ = cluster.gateway_http_url


def test_a_given_redis_is_used_and_must_answer(make_options: MakeOptions) -> None:
    with LocalCluster(make_options(with_gateway=False, num_drafters=0)) as owner:
        with LocalCluster(make_options(with_gateway=False, num_drafters=0, redis_url=owner.redis_url)) as guest:
            assert guest.redis is None
            assert guest.redis_url in guest.verifiers[0].process.argv
        assert answers_ping(owner.redis_url)
    with pytest.raises(LocalError, match="no Redis answers at"):
        LocalCluster(make_options(redis_url="redis://127.0.0.1:9/0")).start()


def test_a_taken_http_port_is_an_error_when_asked_for_and_avoided_when_not(make_options: MakeOptions) -> None:
    with LocalCluster(make_options(num_drafters=0)) as first:
        assert first.gateway is not None
        port = first.gateway.http_port
        assert not is_free(port)
        with pytest.raises(LocalError, match=f"port {port} is in use: pass another one with --http-port"):
            LocalCluster(make_options(num_drafters=0, http_port=port)).start()
        with LocalCluster(make_options(num_drafters=0, preferred_http_port=port)) as second:
            assert second.gateway is not None
            assert second.gateway.http_port != port


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_verifiers": 0}, "at least one verifier"),
        ({"num_drafters": -1}, "cannot be negative"),
        ({"prompt_lookup": False}, "an SSM or prompt lookup"),
    ],
)
def test_impossible_options_are_refused(make_options: MakeOptions, changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint):
        make_options(**changes)
