"""The folder of one run's logs: nobody else writes to it while we do."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = "lock"


@contextmanager
def exclusive_run_dir(folder: Path, *, keep_logs: bool) -> Iterator[Path]:
    """`folder`, emptied of an earlier run's logs; a subfolder of it while another launcher uses `folder`.

    The logs are deleted on a clean end unless `keep_logs`; after an exception they stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = folder
        except BlockingIOError:
            mine = folder / str(os.getpid())
            mine.mkdir(exist_ok=True)
        _remove_logs(mine)
        yield mine
        if not keep_logs:
            _remove_logs(mine)
            if mine != folder:
                shutil.rmtree(mine, ignore_errors=True)


def _remove_logs(folder: Path) -> None:
    for log in folder.glob("*.log"):
        log.unlink(missing_ok=True)
