"""The generated messages are those of protos/: nobody edits them, nobody forgets to write them again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "services" / "common"


def test_generated_messages_match_the_protos(tmp_path: Path) -> None:
    subprocess.run(
        [ROOT / "protos" / "generate.sh", tmp_path],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        timeout=120,
    )
    fresh = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(fresh) == 3 * len(list((ROOT / "protos").rglob("*.proto")))
    committed = {
        path.relative_to(COMMITTED): path.read_bytes()
        for path in (COMMITTED / "specgrove" / "proto").rglob("*")
        if path.suffix in (".py", ".pyi") and path.name != "__init__.py"
    }
    assert committed.keys() == fresh.keys()
    changed = [str(path) for path in fresh if committed[path] != fresh[path]]
    assert not changed, f"run `make protos`: {changed}"
