"""The layers of the house, checked by a tool and by trying."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_IMPORT_ALL = """
import importlib, pkgutil, sys
import specgrove.client
extras = sorted({"tokenizers", "jinja2", "pydantic", "redis", "numpy", "torch"} & sys.modules.keys())
if extras:
    sys.exit(f"importing the client imported {extras}")
import specgrove_gateway
for module in pkgutil.walk_packages(specgrove_gateway.__path__, "specgrove_gateway."):
    importlib.import_module(module.name)
heavy = sorted({"torch", "transformers", "triton", "numpy"} & sys.modules.keys())
sys.exit(f"importing the gateway imported {heavy}" if heavy else 0)
"""


def test_import_contracts_are_kept() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_gateway_runs_without_torch_and_the_client_with_the_base_dependencies_alone() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT_ALL], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_drafter_and_verifier_starts_nothing() -> None:
    code = (
        "import threading, specgrove_verifier.__main__, specgrove_drafter.__main__, sys\n"
        "sys.exit(threading.active_count() - 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
