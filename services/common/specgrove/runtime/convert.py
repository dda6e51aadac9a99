"""`python -m specgrove.runtime.convert --gguf FILE --out DIR`: a GGUF file as a safetensors folder, once.

Reading a GGUF through `transformers` takes half a minute; services start from the folder in two seconds. The folder is
written beside its place and renamed, so a half-written one is never taken for a model.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from specgrove.errors import SpecgroveError
from specgrove.runtime import hf


def convert(gguf: Path, out: Path, report: Callable[[str], None] = lambda line: None) -> Path:
    """`out`, made from `gguf` unless it is there already."""
    if (out / "config.json").is_file():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=out.name + ".", dir=out.parent))
    try:
        hf.convert_gguf(gguf, partial, report)
        partial.chmod(0o755)
        for written in partial.iterdir():
            written.chmod(0o644)
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def cached_folder(gguf: Path, cache_root: Path) -> Path:
    """Where the folder of `gguf` is kept: one place for each path, size and time of change."""
    stat = gguf.stat()
    key = hashlib.sha256(f"{gguf.resolve()}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    return cache_root / f"{gguf.stem}-{key}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    started = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {line}", flush=True)

    hf.silence_progress_bars()
    try:
        convert(arguments.gguf, arguments.out, report)
    except SpecgroveError as error:
        print(error.message, file=sys.stderr)
        return 2
    report("done")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
