"""A drafter that dies, freezes or comes back costs a short wait and never a token."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from specgrove_local import grpc_client
from specgrove_local.cluster import LocalCluster
from specgrove_local.options import ClusterOptions
from specgrove_local.pods import Pod
from specgrove_local.ports import PortPicker
from support.gateway_client import Answer, Ask, GatewayClient, LiveStream
from support.live_cluster import AHEAD_FLAGS, DRAFTS, metric, ssm_flags
from support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

_MAX_DRAFT_WAIT_MS = 300
# What the machine may add to a gap: six processes share its cores, a drafter that starts (imports, model loading) among
# them. On top, a fault is inflicted up to three times and one run without a stall will do: hiccups of a busy machine,
# which hit runs without any fault as well, do not come three times in a row; a stall by our own doing does.
_NOISE_S = 0.25
_ATTEMPTS = 3
_ATTACH_S = 2.0
_NUM_TOKENS = 120
_RESTART_TOKENS = 240  # long enough for a drafter to start meanwhile
_LONG = 2000  # tokens: more than any of these tests lets a stream write


@pytest.fixture(scope="module")
def cluster(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = ClusterOptions(
        target=target,
        http_port=PortPicker().any_free(),
        num_drafters=0,
        run_dir=tmp_path_factory.mktemp("faults-run"),
        verifier_flags=("--budget", "fixed", "--max-draft-wait-ms", str(_MAX_DRAFT_WAIT_MS)),
    )
    with LocalCluster(options) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[GatewayClient]:
    with GatewayClient(cluster.gateway_grpc_address) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def ask(prompts: list[tuple[int, ...]]) -> Ask:
    return Ask(prompts[0], _NUM_TOKENS, temperature=0.8, seed=7, ignore_eos=True)


@pytest.fixture(scope="module")
def plain(client: GatewayClient, ask: Ask) -> Answer:
    """The same request by plain decoding, with nobody disturbing it."""
    return client.ask(replace(ask, speculation=False))


def _attached_drafter(cluster: LocalCluster) -> Pod:
    """A drafter that is attached and alone."""
    for pod in cluster.drafters:
        if pod.process.is_running:
            return pod
    return cluster.add_drafter(*ssm_flags(), *AHEAD_FLAGS, num_expected=1)


def _stream_with_drafts(cluster: LocalCluster, client: GatewayClient, ask: Ask) -> LiveStream:
    """A stream in whose steps trees are being verified."""
    before = metric(cluster.verifiers[0], DRAFTS)
    stream = client.start(ask)
    wait_until(
        lambda: metric(cluster.verifiers[0], DRAFTS) >= before + 3 or stream.is_over,
        timeout_s=60,
        what="three trees were verified in the stream",
    )
    assert not stream.is_over, "the stream ended before the fault"
    return stream


def _is_smooth(answer: Answer, plain: Answer, broken_at_s: float) -> bool:
    """Whether no gap after the fault was longer than the draft wait, one step and the noise."""
    stall_s, step_s = answer.longest_gap_s(after=broken_at_s), plain.longest_gap_s()
    limit_s = _MAX_DRAFT_WAIT_MS / 1000 + step_s + _NOISE_S
    print(f"longest gap after the fault {stall_s:.3f} s; limit {limit_s:.3f} s, step {step_s:.3f} s")
    return stall_s <= limit_s


def _inflict_until_smooth(
    fault: Callable[[Pod], None],
    repair: Callable[[Pod], None],
    cluster: LocalCluster,
    client: GatewayClient,
    ask: Ask,
    plain: Answer,
) -> None:
    """Inflict `fault` on the drafter in mid-stream; the tokens stay in every attempt, one attempt has no stall."""
    for _ in range(_ATTEMPTS):
        drafter = _attached_drafter(cluster)
        stream = _stream_with_drafts(cluster, client, ask)
        broken_at_s = time.monotonic()
        fault(drafter)
        try:
            answer = stream.answer()
        finally:
            repair(drafter)
        assert answer.token_ids == plain.token_ids
        assert answer.chunks[-1][0] > broken_at_s, "the stream was over before the fault"
        if _is_smooth(answer, plain, broken_at_s):
            return
    raise AssertionError(f"the stream stalled in each of {_ATTEMPTS} attempts")


def test_sigkill_of_the_drafter_in_mid_stream_changes_no_token_and_stalls_nothing(
    cluster: LocalCluster, client: GatewayClient, ask: Ask, plain: Answer
) -> None:
    _inflict_until_smooth(Pod.kill, lambda pod: None, cluster, client, ask, plain)


def test_sigstop_of_the_drafter_in_mid_stream_changes_no_token_and_stalls_nothing(
    cluster: LocalCluster, client: GatewayClient, ask: Ask, plain: Answer
) -> None:
    _inflict_until_smooth(Pod.suspend, Pod.resume, cluster, client, ask, plain)


def test_frozen_drafter_stalls_no_new_request_and_is_used_again_once_it_goes_on(
    cluster: LocalCluster, client: GatewayClient, ask: Ask, plain: Answer
) -> None:
    drafter = _attached_drafter(cluster)
    drafter.suspend()
    try:
        answers = [client.ask(ask)]
        while not _is_smooth(answers[-1], plain, 0.0) and len(answers) < _ATTEMPTS:
            answers.append(client.ask(ask))
    finally:
        drafter.resume()
    assert all(answer.token_ids == plain.token_ids for answer in answers)
    assert _is_smooth(answers[-1], plain, 0.0)

    before = metric(cluster.verifiers[0], DRAFTS)
    stream = client.start(replace(ask, max_tokens=_LONG))
    try:
        took_s = wait_until(
            lambda: metric(cluster.verifiers[0], DRAFTS) >= before + 3,
            timeout_s=20,
            what="trees of the resumed drafter were verified",
        )
    finally:
        stream.cancel()
    print(f"the resumed drafter was used after {took_s:.2f} s")


@pytest.mark.parametrize("flags", [(), ("--kv-tokens", "64")], ids=["restarted", "restarted and starved of cache"])
def test_a_drafter_killed_and_started_again_ahead_of_the_verifier_changes_no_token_and_keeps_no_mirror(
    cluster: LocalCluster, client: GatewayClient, ask: Ask, flags: tuple[str, ...]
) -> None:
    """A cache of 64 tokens holds not one session: the SSMs are read anew again and again, or have nothing to say."""
    longer = replace(ask, max_tokens=_RESTART_TOKENS)
    plain = client.ask(replace(longer, speculation=False))
    drafter = _attached_drafter(cluster)
    stream = _stream_with_drafts(cluster, client, longer)
    drafter.kill()
    successor = cluster.add_drafter(*ssm_flags(), *AHEAD_FLAGS, *flags, num_expected=1)
    was_over = stream.is_over
    assert stream.answer().token_ids == plain.token_ids
    assert client.ask(longer).token_ids == plain.token_ids
    print(f"the stream was {'over' if was_over else 'running'} when the successor attached")
    assert metric(successor, "specgrove:drafter_num_ahead_forwards_total") > 0 or flags
    wait_until(lambda: metric(successor, "specgrove:drafter_mirrors") == 0, timeout_s=10, what="no mirror is left")
    successor.stop()


def test_new_drafter_is_used_by_a_running_stream_within_two_seconds_of_its_readiness(
    cluster: LocalCluster, client: GatewayClient, ask: Ask
) -> None:
    took_s = _time_to_use_a_new_drafter(cluster, client, ask)
    for _ in range(_ATTEMPTS - 1):
        if took_s > _ATTACH_S:
            took_s = _time_to_use_a_new_drafter(cluster, client, ask)
    assert took_s <= _ATTACH_S


def _time_to_use_a_new_drafter(cluster: LocalCluster, client: GatewayClient, ask: Ask) -> float:
    """Seconds from the readiness of a drafter that joins a running stream to the first of its trees in a step."""
    verifier = cluster.verifiers[0]
    for pod in cluster.drafters:
        pod.stop()
    wait_until(lambda: grpc_client.num_drafters(verifier.address) == 0, timeout_s=10, what="no drafter is attached")
    stream = client.start(replace(ask, max_tokens=_LONG, seed=9))
    try:
        stream.wait_for_tokens(3)
        before = metric(verifier, DRAFTS)
        pod = cluster.add_drafter(*ssm_flags(), num_expected=1)
        wait_until(lambda: metric(verifier, DRAFTS) > before, timeout_s=20, what="a new tree was verified")
        used_at = time.time()
        assert not stream.is_over
    finally:
        stream.cancel()
    took_s = used_at - _ready_at(pod)
    print(f"the new drafter was used {took_s:.2f} s after it was ready")
    return took_s


def _ready_at(pod: Pod) -> float:
    """When the pod said in its log that it was ready, on the wall clock."""
    for line in pod.process.log_path.read_text().splitlines():
        if line.startswith("{") and json.loads(line).get("message") == "ready":
            return datetime.fromisoformat(json.loads(line)["time"]).timestamp()
    raise AssertionError(f"{pod.name} never said that it was ready")
