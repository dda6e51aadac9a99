"""Habits of the house that a reader relies on and no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = ("services", "kernels/specgrove_kernels", "deploy/local", "bench")
# The environment is read where settings are read, where a process begins, and where children are given theirs.
MAY_READ_ENVIRONMENT = {
    "services/common/specgrove/config/entry.py",
    "deploy/local/specgrove_local/__main__.py",
    "deploy/local/specgrove_local/commands.py",
}
VAGUE_NAMES = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "base.py", "manager.py", "misc.py"}


def sources() -> Iterator[Path]:
    for root in SOURCE_ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            if "proto" not in path.relative_to(ROOT).parts:
                yield path


def test_no_file_has_a_vague_name() -> None:
    assert [path for path in sources() if path.name in VAGUE_NAMES] == []


def test_kernels_is_no_package() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists(), "transformers imports a package named kernels"


def test_only_the_settings_read_the_environment() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("environ", "getenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    }
    assert readers <= MAY_READ_ENVIRONMENT


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_no_note_to_self_is_left(word: str) -> None:
    assert [str(path.relative_to(ROOT)) for path in sources() if word in path.read_text()] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if path.name != "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []
