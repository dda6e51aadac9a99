"""An engine that runs as a server of its own: how it is found, started, and waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import httpx

from specgrove.errors import SpecgroveError
from specgrove_local.commands import CommandBuilder
from specgrove_local.options import ClusterOptions
from specgrove_local.process import ManagedProcess

_TICK_S = 0.5


class EngineMissing(SpecgroveError):
    """An optional engine is not installed; the message is the line that says which command installs it."""


@dataclass(frozen=True, slots=True)
class EngineServer:
    """Everything that is needed to run one; the argv is complete but for what follows from `port`."""

    name: str
    argv: tuple[str, ...]
    port: int
    model: str  # its name in requests
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of what services of this project get
    extra_body: Mapping[str, object] = field(default_factory=dict)
    health_path: str = "/health"
    start_timeout_s: float = 600.0  # vLLM compiles at its first start

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def find_program(name: str, given: Path | None, homes: Sequence[Path], install: str) -> Path:
    """The program `name`: the given one, or one under `homes`, or one on the PATH. Raises `EngineMissing`."""
    if given is not None:
        if not given.is_file():
            raise EngineMissing(f"there is no program {given}; install one with: {install}")
        return given
    for home in homes:  # in its bin/, or in that of a Python package that carries the program
        for place in (home / "bin" / name, *sorted(home.glob(f"lib/python*/site-packages/*/bin/{name}"))):
            if place.is_file():
                return place
    on_path = which(name)
    if on_path is None:
        raise EngineMissing(f"no {name} here; install it with: {install}")
    return Path(on_path)


@contextmanager
def running(server: EngineServer, target: Path, run_dir: Path) -> Iterator[EngineServer]:
    """Start the server, wait until it is healthy, and stop it in the end. Raises `SpecgroveError`."""
    base = CommandBuilder(ClusterOptions(target=target)).environment("verifier")
    own = {name: value for name, value in base.items() if name != "PYTHONPATH"}  # an environment of its own
    process = ManagedProcess(
        server.name,
        server.argv,
        environment={**own, **server.environment},
        log_path=run_dir / f"{server.name}.log",
    )
    process.start()
    try:
        _await_health(server, process)
        yield server
    finally:
        process.stop()


def _await_health(server: EngineServer, process: ManagedProcess) -> None:
    deadline = time.monotonic() + server.start_timeout_s
    with httpx.Client(trust_env=False, timeout=5.0) as http:
        while True:
            process.raise_if_dead()
            try:
                if http.get(server.base_url + server.health_path).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise SpecgroveError(
                    f"{server.name} is not healthy after {server.start_timeout_s:.0f} s; the end of "
                    f"{process.log_path}:\n{process.log_tail()}"
                )
            time.sleep(_TICK_S)
