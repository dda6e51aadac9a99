"""What the launcher asks over HTTP: is the gateway there."""

from __future__ import annotations

from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener


def is_ok(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether a GET answers 200. Proxies of the environment are not asked: everything is on loopback."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
