"""The command line and the environment of each service."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from specgrove_local.options import ClusterOptions
from specgrove_local.ports import LOOPBACK


class CommandBuilder:
    def __init__(self, options: ClusterOptions) -> None:
        self._options = options

    def verifier(
        self, pod_id: str, port: int, metrics_port: int, redis_url: str, flags: Sequence[str] = ()
    ) -> list[str]:
        return [
            *_module("specgrove_verifier"),
            *("--model", str(self._options.target), "--model-name", self._options.served_name),
            *("--weights", self._options.weights),
            *_pod_flags(pod_id, port, metrics_port, redis_url),
            *self._options.verifier_flags,
            *flags,
        ]

    def drafter(
        self,
        pod_id: str,
        port: int,
        metrics_port: int,
        redis_url: str,
        verifiers: Sequence[str],
        flags: Sequence[str] = (),
    ) -> list[str]:
        ssm_flags = ["--ssm", ",".join(map(str, self._options.ssms))] if self._options.ssms else []
        return [
            *_module("specgrove_drafter"),
            *ssm_flags,
            "--prompt-lookup" if self._options.prompt_lookup else "--no-prompt-lookup",
            *("--tokenizer", str(self._options.target), "--verifiers", ",".join(verifiers)),
            *_pod_flags(pod_id, port, metrics_port, redis_url),
            *self._options.drafter_flags,
            *flags,
        ]

    def gateway(self, http_port: int, grpc_port: int, redis_url: str, verifiers: Sequence[str]) -> list[str]:
        return [
            *_module("specgrove_gateway"),
            *("--tokenizer", str(self._options.target), "--model-name", self._options.served_name),
            *("--host", LOOPBACK, "--http-port", str(http_port), "--grpc-port", str(grpc_port)),
            *("--verifiers", ",".join(verifiers), "--redis-url", redis_url),
            *self._options.gateway_flags,
        ]

    def environment(self, kind: str) -> dict[str, str]:
        """This process's environment with a fair share of the cores; how threads wait is left to OpenMP (README)."""
        return {
            **os.environ,
            "OMP_NUM_THREADS": str(self._options.threads(kind)),
            "PYTHONUNBUFFERED": "1",
            **self._options.environment,
        }


def _module(name: str) -> tuple[str, str, str]:
    return sys.executable, "-m", name


def _pod_flags(pod_id: str, port: int, metrics_port: int, redis_url: str) -> list[str]:
    return [
        *("--host", LOOPBACK, "--port", str(port), "--metrics-port", str(metrics_port)),
        *("--redis-url", redis_url, "--pod-id", pod_id),
    ]
