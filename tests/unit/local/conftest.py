"""Local clusters of stand-in services: the launcher is real, and so is Redis; the services start in half a second."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specgrove_local.options import ClusterOptions

_STAND_INS = Path(__file__).with_name("stand_ins")


@pytest.fixture
def stand_in_environment(tmp_path: Path) -> dict[str, str]:
    """What makes `python -m specgrove_verifier` run a stand-in."""
    folder = tmp_path / "attached"
    folder.mkdir()
    paths = [str(_STAND_INS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "STAND_IN_FOLDER": str(folder)}


@pytest.fixture
def make_options(tmp_path: Path, stand_in_environment: dict[str, str]) -> Callable[..., ClusterOptions]:
    """Options for a cluster of stand-ins; `behaviours` as in stand_in_pod, other arguments as in ClusterOptions."""

    def make(behaviours: dict[str, str] | None = None, **changes: object) -> ClusterOptions:
        behaving = {f"STAND_IN_{kind.upper()}": behaviour for kind, behaviour in (behaviours or {}).items()}
        defaults: dict[str, object] = {
            "target": tmp_path / "some-model",
            "run_dir": tmp_path / "run",
            "environment": {**stand_in_environment, **behaving},
            "start_timeout_s": 30.0,
            "stop_grace_s": 5.0,
        }
        return ClusterOptions(**(defaults | changes))  # type: ignore[arg-type]

    return make
