"""A server with OpenAI's completions endpoint that streams what a test tells it to: vLLM's and llama.cpp's manners.

Run as a program it serves until it is ended, `--port N` among whatever else it is told, like the real ones.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PLAIN_EVENTS: tuple[dict[str, Any], ...] = (
    {"choices": [{"text": "a"}]},
    {"choices": [{"text": "b"}]},
    {"choices": [], "usage": {"completion_tokens": 2}},
)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, events: Sequence[dict[str, Any]], status: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.events = events
        self.status = status
        self.bodies: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()
        if self.server.status != 200:
            self.wfile.write(b"no such model")
            return
        for event in self.server.events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def completions_server(events: Sequence[dict[str, Any]] = PLAIN_EVENTS, status: int = 200) -> Iterator[_Server]:
    """A server on a free port (`server_port`); `bodies` are the requests it got."""
    server = _Server(0, events, status)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    _Server(int(sys.argv[sys.argv.index("--port") + 1]), PLAIN_EVENTS, 200).serve_forever()
