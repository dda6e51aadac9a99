"""Several processes that write the target's text side by side.

One process of two threads waits for itself at every small operation: two processes of one thread each write one and a
half times as much on two cores (measured, see the README).
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from specgrove_drafter.tuning.errors import TuningError
from specgrove_drafter.tuning.hub import open_target, quiet_hub
from specgrove_drafter.tuning.progress import Meter, say
from specgrove_drafter.tuning.shards import num_tokens_on_disk, shards_on_disk

if TYPE_CHECKING:
    from specgrove_drafter.tuning.settings import Settings

LOOK_EVERY_S = 1.0


def run_writers(settings: Settings, shards: Path, meter: Meter) -> None:
    """Run `--writers` processes until the shards hold `--tokens` tokens or all of them have ended.

    Raises TuningError when one fails. What it had not finished is written again by the next run.
    """
    context = multiprocessing.get_context("spawn")
    writers: list[BaseProcess] = [
        context.Process(target=_write, args=(settings, shards, number), name=f"writer-{number}", daemon=True)
        for number in range(settings.writers)
    ]
    for process in writers:
        process.start()
    try:
        num_shards = len(shards_on_disk(shards))
        while meter.done < settings.tokens and any(process.is_alive() for process in writers):
            time.sleep(LOOK_EVERY_S)
            failed = [process.name for process in writers if process.exitcode]
            if failed:
                raise TuningError(f"{', '.join(failed)} failed; the lines above say why. --resume goes on from here")
            found = len(shards_on_disk(shards))
            if found > num_shards:
                num_shards = found
                meter.advance(num_tokens_on_disk(shards) - meter.done)
                say("generate", f"{found} shards: {meter.describe('tokens')}")
    finally:
        for process in writers:
            process.terminate()
            process.join()


def _write(settings: Settings, shards: Path, number: int) -> None:
    from specgrove_drafter.tuning.text_stages import write_text

    quiet_hub()
    torch.set_num_threads(max(1, settings.threads // settings.writers))
    write_text(settings, open_target(settings.target), shards, number, None)
