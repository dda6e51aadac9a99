"""Serving until told to stop, and saying at once when a process falls over."""

from __future__ import annotations

import time
from collections.abc import Callable

from specgrove_local.cluster import LocalCluster
from specgrove_local.errors import ChildDied

_TICK_S = 0.2


def serve_until_stopped(cluster: LocalCluster, report: Callable[[str], None]) -> None:
    """Return never by itself; KeyboardInterrupt ends it. ChildDied when nothing useful is left.

    The system outlives any drafter, Redis, and all verifiers but one: those deaths are only reported.
    """
    reported: set[str] = set()
    while True:
        for process in cluster.processes:
            if process.is_running or process.name in reported:
                continue
            reported.add(process.name)
            gateway_died = cluster.gateway is not None and process is cluster.gateway.process
            if gateway_died or not any(verifier.process.is_running for verifier in cluster.verifiers):
                raise ChildDied(f"{process.describe_end()}; the end of {process.log_path}:\n{process.log_tail()}")
            report(f"{process.describe_end()}; going on without it (log: {process.log_path})")
        time.sleep(_TICK_S)
