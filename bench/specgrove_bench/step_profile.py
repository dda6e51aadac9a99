"""Where a target step's time goes: `python -m specgrove_bench.step_profile`, with bench/ on the path.

Times packed forwards of 1, 6 and 12 rows over a prefix in this process, alone, and splits them by torch's profiler into
packed matrix products, attention products, and everything else (norms, rotation, Python, dispatch).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.kv_cache import CachedSequence
from specgrove.runtime.loading import load_model
from specgrove_local.models import ensure_target

_ROWS = (1, 6, 12)
_PREFIX_LEN = 200
_REPEATS = 15
_MATRIX_PRODUCTS = ("quantized::linear", "aten::addmm", "aten::mm", "aten::linear")
_ATTENTION_PRODUCTS = ("aten::bmm", "aten::_softmax")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="target's folder; default: the demo's")
    parser.add_argument("--weights", default="auto", choices=("auto", "float32", "fp16_packed"))
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model or ensure_target(), arguments.weights)
    cache = loaded.new_cache(max_tokens=1024)
    forward = PackedForward(loaded, cache)
    seq = cache.new_sequence()
    chain = range(_PREFIX_LEN)
    forward.run([SequenceRows(seq, list(chain), chain, range(-1, _PREFIX_LEN - 1), [False] * _PREFIX_LEN)])
    cache.commit(seq, chain)

    def run(rows: int) -> float:
        started = time.perf_counter()
        forward.run([_tree_rows(seq, rows)])
        elapsed_s = time.perf_counter() - started
        cache.rollback(seq)
        return elapsed_s

    print("| rows | step ms | matrix products | attention products | the rest |\n|---|---|---|---|---|")
    for rows in _ROWS:
        for _ in range(3):
            run(rows)
        step_ms = 1e3 * statistics.median(run(rows) for _ in range(_REPEATS))
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(_REPEATS):
                run(rows)
        events = profiler.key_averages()
        products = _milliseconds(events, _MATRIX_PRODUCTS)
        attention = _milliseconds(events, _ATTENTION_PRODUCTS)
        rest = max(step_ms - products - attention, 0.0)
        print(f"| {rows} | {step_ms:.1f} | {products:.1f} ms | {attention:.1f} ms | {rest:.1f} ms |")
    return 0


def _tree_rows(seq: CachedSequence, rows: int) -> SequenceRows:
    """A root and its children: as many rows as asked for."""
    return SequenceRows(seq, [7] * rows, [_PREFIX_LEN] * rows, [-1, *[0] * (rows - 1)], [True] * rows)


def _milliseconds(events: object, prefixes: tuple[str, ...]) -> float:
    """Mean self time of a step in the operators whose names start with one of `prefixes`."""
    total_us = sum(
        event.self_cpu_time_total
        for event in events  # type: ignore[attr-defined]
        if event.key.startswith(prefixes)
    )
    return total_us / _REPEATS / 1e3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
