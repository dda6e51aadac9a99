"""Handles of running pods: where they listen, and the faults that tests inflict on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from specgrove_local.errors import LocalError
from specgrove_local.ports import LOOPBACK
from specgrove_local.process import ManagedProcess

PodKind = Literal["verifier", "drafter"]

# Names in the gRPC health protocol. The drafter serves no calls of its own: it has the overall health only.
VERIFIER_SERVICE = "specgrove.proto.v1.VerifierService"
DRAFTER_SERVICE = ""


@dataclass(frozen=True, slots=True)
class Pod:
    """One verifier or drafter."""

    name: str
    kind: PodKind
    service: str
    port: int
    metrics_port: int
    _process: ManagedProcess | None = None

    def with_process(self, process: ManagedProcess) -> Pod:
        return replace(self, _process=process)

    @property
    def process(self) -> ManagedProcess:
        if self._process is None:
            raise LocalError(f"{self.name} has not been started")
        return self._process

    @property
    def address(self) -> str:
        """host:port of its gRPC server."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{LOOPBACK}:{self.metrics_port}/metrics"

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self.process.kill()

    def suspend(self) -> None:
        """SIGSTOP."""
        self.process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM and, after `grace_s`, SIGKILL."""
        self.process.stop(grace_s)


@dataclass(frozen=True, slots=True)
class Gateway:
    process: ManagedProcess
    http_port: int
    grpc_port: int

    def kill(self) -> None:
        self.process.kill()
