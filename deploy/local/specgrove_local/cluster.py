"""The system as processes on loopback, for the demo, the end-to-end and fault tests and the bench.

    with LocalCluster(ClusterOptions(target=folder, num_drafters=2)) as cluster:
        cluster.gateway_http_url                     # http://127.0.0.1:8000
        cluster.verifiers[0].address                 # 127.0.0.1:23456
        cluster.drafters[0].kill()                   # SIGKILL; .suspend() and .resume(): SIGSTOP and SIGCONT
        cluster.add_drafter("--expansion", "1,1,3")  # one more, healthy and attached when the call returns

Started in the order Redis, verifiers and drafters (which load their models side by side), gateway; stopped the other
way round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from specgrove_local import grpc_client, http_client
from specgrove_local.commands import CommandBuilder
from specgrove_local.errors import LocalError, NotReady
from specgrove_local.options import ClusterOptions
from specgrove_local.pods import DRAFTER_SERVICE, VERIFIER_SERVICE, Gateway, Pod, PodKind
from specgrove_local.ports import LOOPBACK, PortPicker
from specgrove_local.process import ManagedProcess
from specgrove_local.redis_server import answers_ping, find_redis_server, redis_argv

Report = Callable[[str], None]

_TICK_S = 0.1
_SAY_EVERY_S = 5.0


def _silent(line: str) -> None:
    del line


class LocalCluster:
    """Redis, verifiers, drafters and a gateway; a context manager that starts them and stops them in reverse order."""

    def __init__(self, options: ClusterOptions, *, report: Report = _silent) -> None:
        self.options = options
        self.verifiers: list[Pod] = []
        self.drafters: list[Pod] = []
        self.gateway: Gateway | None = None
        self.redis: ManagedProcess | None = None
        self.redis_url = options.redis_url or ""
        self._report = report
        self._ports = PortPicker()
        self._commands = CommandBuilder(options)
        self._processes: list[ManagedProcess] = []

    # --- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return when all of it is healthy and the drafters are attached.

        ChildDied or NotReady (with the end of the log) when a process does not come up; nothing is left running then.
        """
        try:
            self._start_redis()
            for _ in range(self.options.num_verifiers):
                self.verifiers.append(self._launch_verifier())
            for _ in range(self.options.num_drafters):
                self.drafters.append(self._launch_drafter())
            for pod in (*self.verifiers, *self.drafters):
                self._await_pod(pod)
            if self.options.with_gateway:
                self.gateway = self._launch_gateway()
                self._await_gateway(self.gateway)
            self._await_attached(len(self.drafters))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop what still runs, last started first. A second Ctrl-C on the way kills the rest at once."""
        running = [process for process in reversed(self._processes) if process.is_running]
        try:
            for process in running:
                process.stop(self.options.stop_grace_s)
        except KeyboardInterrupt:
            for process in running:
                if process.is_running:
                    process.kill()

    # --- what is there ------------------------------------------------------------------------------------------

    @property
    def processes(self) -> tuple[ManagedProcess, ...]:
        """Every process in the order of its start, the ended ones included."""
        return tuple(self._processes)

    @property
    def gateway_http_url(self) -> str:
        return f"http://{LOOPBACK}:{self._gateway().http_port}"

    @property
    def gateway_grpc_address(self) -> str:
        return f"{LOOPBACK}:{self._gateway().grpc_port}"

    def add_verifier(self, *flags: str) -> Pod:
        """One more verifier, healthy when the call returns. Gateway and drafters find it through Redis."""
        pod = self._launch_verifier(*flags)
        self.verifiers.append(pod)
        self._await_pod(pod)
        return pod

    def add_drafter(self, *flags: str, num_expected: int | None = None) -> Pod:
        """One more drafter, healthy and attached to every living verifier when the call returns.

        A verifier may still count a drafter that died a moment ago: `num_expected` says how many it must count
        (None: those that run).
        """
        pod = self._launch_drafter(*flags)
        self.drafters.append(pod)
        self._await_pod(pod)
        living = sum(drafter.process.is_running for drafter in self.drafters)
        self._await_attached(num_expected if num_expected is not None else living)
        return pod

    def raise_if_any_died(self) -> None:
        """ChildDied when a process ended that nobody had asked to."""
        for process in self._processes:
            process.raise_if_dead()

    # --- one process each ---------------------------------------------------------------------------------------

    def _start_redis(self) -> None:
        if self.redis_url:
            if not answers_ping(self.redis_url):
                raise LocalError(f"no Redis answers at {self.redis_url}: start it, or unset REDIS_URL for an own one")
            self._report(f"redis: using {self.redis_url}")
            return
        port = self._ports.any_free()
        folder = self.options.run_dir
        folder.mkdir(parents=True, exist_ok=True)
        self.redis = self._spawn(
            "redis", redis_argv(find_redis_server(), port, folder), self._commands.environment("redis")
        )
        self.redis_url = f"redis://{LOOPBACK}:{port}/0"
        self._await("redis", lambda: answers_ping(self.redis_url), self.redis)

    def _launch_verifier(self, *flags: str) -> Pod:
        pod = self._new_pod("verifier", len(self.verifiers), VERIFIER_SERVICE)
        argv = self._commands.verifier(pod.name, pod.port, pod.metrics_port, self.redis_url, flags)
        return pod.with_process(self._spawn(pod.name, argv, self._commands.environment("verifier")))

    def _launch_drafter(self, *flags: str) -> Pod:
        pod = self._new_pod("drafter", len(self.drafters), DRAFTER_SERVICE)
        addresses = [verifier.address for verifier in self.verifiers]
        argv = self._commands.drafter(pod.name, pod.port, pod.metrics_port, self.redis_url, addresses, flags)
        return pod.with_process(self._spawn(pod.name, argv, self._commands.environment("drafter")))

    def _launch_gateway(self) -> Gateway:
        options = self.options
        http_port = (
            self._ports.exactly(options.http_port, flag="--http-port")
            if options.http_port is not None
            else self._ports.preferred(options.preferred_http_port)
        )
        grpc_port = (
            self._ports.exactly(options.grpc_port, flag="--grpc-port")
            if options.grpc_port is not None
            else self._ports.any_free()
        )
        addresses = [verifier.address for verifier in self.verifiers]
        argv = self._commands.gateway(http_port, grpc_port, self.redis_url, addresses)
        return Gateway(self._spawn("gateway", argv, self._commands.environment("gateway")), http_port, grpc_port)

    def _new_pod(self, kind: PodKind, index: int, service: str) -> Pod:
        return Pod(f"{kind}-{index}", kind, service, self._ports.any_free(), self._ports.any_free())

    def _spawn(self, name: str, argv: list[str], environment: dict[str, str]) -> ManagedProcess:
        process = ManagedProcess(name, argv, environment=environment, log_path=self.options.run_dir / f"{name}.log")
        process.start()
        self._processes.append(process)
        return process

    # --- waiting ------------------------------------------------------------------------------------------------

    def _await_pod(self, pod: Pod) -> None:
        doing = "loads the target and measures its steps" if pod.kind == "verifier" else "loads its members"
        self._await(f"{pod.name} ({doing})", lambda: grpc_client.is_serving(pod.address, pod.service), pod.process)

    def _await_gateway(self, gateway: Gateway) -> None:
        self._await("gateway", lambda: http_client.is_ok(f"{self.gateway_http_url}/health"), gateway.process)
        address = self.gateway_grpc_address
        self._await("gateway knows a verifier", lambda: grpc_client.knows_a_verifier(address), gateway.process)

    def _await_attached(self, num_drafters: int) -> None:
        living = [verifier for verifier in self.verifiers if verifier.process.is_running]
        for verifier in living if num_drafters else []:
            self._await(
                f"{num_drafters} drafter(s) attached to {verifier.name}",
                lambda address=verifier.address: grpc_client.num_drafters(address) >= num_drafters,  # type: ignore[misc]
                verifier.process,
            )

    def _await(self, what: str, is_ready: Callable[[], bool], process: ManagedProcess) -> None:
        """Wait until `is_ready`, saying so every few seconds. ChildDied as soon as any process of the cluster ends."""
        began = said = time.monotonic()
        while not is_ready():
            self.raise_if_any_died()
            now = time.monotonic()
            if now - began > self.options.start_timeout_s:
                raise NotReady(
                    f"not ready after {self.options.start_timeout_s:.0f} s: {what}; the end of {process.log_path}:\n"
                    f"{process.log_tail()}"
                )
            if now - said >= _SAY_EVERY_S:
                self._report(f"waiting for {what} ... {now - began:.0f} s")
                said = now
            time.sleep(_TICK_S)
        self._report(f"{what}: ready after {time.monotonic() - began:.1f} s")

    def _gateway(self) -> Gateway:
        if self.gateway is None:
            raise LocalError("this cluster has no gateway (or is not started yet)")
        return self.gateway
