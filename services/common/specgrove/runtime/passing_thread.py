"""Heavy work beside an event loop, on a thread that ends with it.

OpenMP keeps a pool of workers for every thread that ever ran a parallel region, for as long as that thread lives, and
libgomp stops spinning between regions as soon as all pools together have more threads than the machine has cores: each
of the hundreds of regions in a forward then costs a wake-up. On two cores a step of the engine took 79 ms instead of
36 ms because the pool's thread that had loaded the model was still there. So models are loaded on a thread that ends,
and one thread, the engine's, owns the device ever after.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Outcome = TypeVar("Outcome")


async def on_passing_thread(
    function: Callable[Arguments, Outcome], *arguments: Arguments.args, **keywords: Arguments.kwargs
) -> Outcome:
    """The outcome of `function(...)`, run on a new thread that has ended when it comes."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()

    def deliver(outcome: Outcome | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(outcome)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome = function(*arguments, **keywords)
        except BaseException as error:
            loop.call_soon_threadsafe(deliver, None, error)
        else:
            loop.call_soon_threadsafe(deliver, outcome, None)

    thread = threading.Thread(target=run, name=f"passing-{function.__name__}", daemon=True)
    thread.start()
    try:
        return await future
    finally:
        thread.join(timeout=1.0)
