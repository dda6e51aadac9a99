"""What a local cluster consists of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specgrove_local.errors import LocalError

DEFAULT_HTTP_PORT = 8000


# Drafter and verifier share this machine's cores: one thread for the small model, so that it never waits for a core
# that the verifier holds, and no work ahead in time that is not idle.
SHARED_CORES_FLAGS = ("--threads", "1", "--ahead", "off")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Which model, how many of each service, and flags passed on to every process of a kind."""

    target: Path  # model folder
    ssms: tuple[Path, ...] = ()  # empty: prompt lookup only
    prompt_lookup: bool = True
    num_verifiers: int = 1
    num_drafters: int = 1
    with_gateway: bool = True
    model_name: str = ""  # empty: the name of the target's folder
    weights: str = "auto"
    http_port: int | None = None  # None: `preferred_http_port` if it is free, else any
    grpc_port: int | None = None  # None: any
    preferred_http_port: int = DEFAULT_HTTP_PORT
    redis_url: str | None = None  # None: a Redis of its own
    run_dir: Path = Path(".run")  # logs
    verifier_flags: tuple[str, ...] = ()
    drafter_flags: tuple[str, ...] = ()
    gateway_flags: tuple[str, ...] = ()
    verifier_threads: int | None = None  # None: by the machine's cores
    drafter_threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of this process's own, for every service
    start_timeout_s: float = 300.0
    stop_grace_s: float = 10.0

    def __post_init__(self) -> None:
        if self.num_verifiers < 1:
            raise LocalError(f"at least one verifier is needed, got {self.num_verifiers}")
        if self.num_drafters < 0:
            raise LocalError(f"the number of drafters cannot be negative, got {self.num_drafters}")
        if not self.ssms and not self.prompt_lookup and self.num_drafters:
            raise LocalError("a drafter needs an SSM or prompt lookup: pass ssms, or leave prompt_lookup on")

    @property
    def served_name(self) -> str:
        return self.model_name or self.target.resolve().name

    def threads(self, kind: str) -> int:
        """Compute threads for one process of `kind`. The gateway computes nothing."""
        cores = len(os.sched_getaffinity(0))
        if kind == "verifier":
            return self.verifier_threads or max(1, cores // self.num_verifiers)
        if kind == "drafter":
            return self.drafter_threads or max(1, cores // 2 // max(1, self.num_drafters))
        return 1
