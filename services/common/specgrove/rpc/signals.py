"""Being asked to end: SIGTERM from Kubernetes, SIGINT from a terminal."""

from __future__ import annotations

import asyncio
import signal

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def wait_for_signal() -> signal.Signals:
    """The first SIGTERM or SIGINT that this process gets.

    A second one acts as it does by default and ends the process at once.
    """
    loop = asyncio.get_running_loop()
    received: asyncio.Future[signal.Signals] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        if not received.done():
            received.set_result(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await received
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
