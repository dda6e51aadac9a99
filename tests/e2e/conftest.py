"""One running system for all end-to-end tests of a session: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from specgrove.text import Tokenizer
from specgrove_local.cluster import LocalCluster
from specgrove_local.options import ClusterOptions
from specgrove_local.ports import PortPicker
from support.exactness import LogitGap, TieCount
from support.gateway_client import GatewayClient
from support.live_cluster import target_folder

MODEL_NAME = "smollm2"
# Trees in every step, whatever they cost: the tests here are about tokens, not about time. Waiting long for drafts
# makes sure that a slow drafter (draft = target) is used too.
_VERIFIER_FLAGS = ("--budget", "fixed", "--draft-wait", "fixed", "--max-draft-wait-ms", "10000")

_TIES = TieCount()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _TIES.lines:
        terminalreporter.section("tie rule (top-2 logit gap below 1e-4)")
        for line in _TIES.lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def ties() -> TieCount:
    return _TIES


@pytest.fixture(scope="session")
def target() -> Path:
    return target_folder()


@pytest.fixture(scope="session")
def tokenizer(target: Path) -> Tokenizer:
    return Tokenizer.load(target)


@pytest.fixture(scope="session")
def cluster(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One verifier that verifies a tree in every step, a gateway, Redis; no drafter: tests bring theirs."""
    options = ClusterOptions(
        target=target,
        http_port=PortPicker().any_free(),
        num_drafters=0,
        model_name=MODEL_NAME,
        run_dir=tmp_path_factory.mktemp("e2e-run"),
        verifier_flags=_VERIFIER_FLAGS,
    )
    with LocalCluster(options) as running:
        yield running


@pytest.fixture(scope="session")
def client(cluster: LocalCluster) -> Iterator[GatewayClient]:
    with GatewayClient(cluster.gateway_grpc_address) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def served_logit_gap(target: Path) -> LogitGap:
    """The top-2 gap of the served target, weights as the verifier keeps them. Loads the model at its first use."""
    loaded_forward: list[object] = []

    def gap(token_ids: Sequence[int]) -> float:
        from specgrove.runtime.forward import PackedForward, SequenceRows
        from specgrove.runtime.loading import load_model

        if not loaded_forward:
            loaded_forward.append(load_model(target, "auto"))
        loaded = loaded_forward[0]
        cache = loaded.new_cache(max_tokens=len(token_ids) + 1)  # type: ignore[attr-defined]
        count = len(token_ids)
        wanted = [False] * (count - 1) + [True]
        rows = SequenceRows(cache.new_sequence(), list(token_ids), range(count), range(-1, count - 1), wanted)
        best = PackedForward(loaded, cache).run([rows])[0].topk(2).values.tolist()  # type: ignore[arg-type]
        return float(best[0] - best[1])

    return gap
