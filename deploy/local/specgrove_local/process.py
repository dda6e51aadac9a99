"""One child process with a log file: started, watched, suspended, killed and stopped, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from specgrove_local.errors import ChildDied, LocalError

_LEASH = Path(__file__).with_name("leash.py")
_LOG_TAIL_BYTES = 16_384


class ManagedProcess:
    """A child that dies with this process, even when this process is killed.

    The kernel watches the *thread* that starts a child: start children from a thread that outlives them.
    """

    def __init__(self, name: str, argv: Sequence[str], *, environment: Mapping[str, str], log_path: Path) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.log_path = log_path
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None
        self._ended_on_purpose = False

    def start(self) -> None:
        if self._child is not None:
            raise LocalError(f"{self.name} was started already")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-I", str(_LEASH), str(os.getpid()), *self.argv],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal reaches us alone; we stop the children in order
            )

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._started().poll()

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def raise_if_dead(self) -> None:
        """ChildDied, with the end of the log, when the process ended and nobody here had asked for that."""
        if self._child is None or self._ended_on_purpose or self._child.poll() is None:
            return
        raise ChildDied(f"{self.describe_end()}; the end of {self.log_path}:\n{self.log_tail()}")

    def describe_end(self) -> str:
        status = self.exit_status
        if status is not None and status < 0:
            return f"{self.name} was ended by {signal.Signals(-status).name}"
        return f"{self.name} exited with status {status}"

    def log_tail(self, num_lines: int = 20) -> str:
        """The last lines of the log, indented."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - _LOG_TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return "    (no log)"
        lines = text.splitlines()[-num_lines:]
        return "\n".join(f"    {line}" for line in lines) or "    (the log is empty)"

    def suspend(self) -> None:
        """SIGSTOP: the process keeps its sockets and says nothing more until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self._ended_on_purpose = True
        self._signal(signal.SIGKILL)
        self._started().wait(timeout=10)

    def request_stop(self) -> None:
        """SIGTERM, without waiting. A suspended process is resumed so that it can obey."""
        self._ended_on_purpose = True
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after `grace_s`; returns when the process is gone. Fine to call twice."""
        if self._child is None:
            return
        self.request_stop()
        try:
            self._child.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        child = self._started()
        if child.poll() is None:
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:
                return  # ended in between

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise LocalError(f"{self.name} was not started")
        return self._child
