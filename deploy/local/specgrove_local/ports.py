"""Free TCP ports on loopback."""

from __future__ import annotations

import random
import socket

from specgrove_local.errors import LocalError

LOOPBACK = "127.0.0.1"
# Below the range from which kernels draw the local ports of outgoing connections: nobody takes one by accident
# between our look and the child's bind.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
_MAX_TRIES = 200


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


class PortPicker:
    """Hands out ports that were free when asked, and none of them twice."""

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def any_free(self) -> int:
        for _ in range(_MAX_TRIES):
            port = random.randint(_FIRST_PORT, _LAST_PORT)
            if port not in self._taken and is_free(port):
                self._taken.add(port)
                return port
        raise LocalError(f"no free port found on {LOOPBACK} between {_FIRST_PORT} and {_LAST_PORT}")

    def exactly(self, port: int, *, flag: str) -> int:
        """`port` itself, or an error that names the flag it came from."""
        if port in self._taken or not is_free(port):
            raise LocalError(f"port {port} is in use: pass another one with {flag}, or none for a free one")
        self._taken.add(port)
        return port

    def preferred(self, port: int) -> int:
        """`port` if it is free, else any."""
        return self.exactly(port, flag="") if port not in self._taken and is_free(port) else self.any_free()
