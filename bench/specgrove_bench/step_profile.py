"""Where a target step's time goes: `python -m specgrove_bench.step_profile`, with bench/ on the path.

Times packed forwards of 1, 6 and 12 rows over a prefix in this process, alone, beside the bare matrix products of the
same weights one after the other, and splits the step by torch's profiler into matrix products, attention products, and
everything else (norms, rotation, Python, dispatch).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.kv_cache import CachedSequence
from specgrove.runtime.loading import DecoderChoice, LoadedModel, load_model
from specgrove.runtime.packed_linear import PackedColumns, PackedLinear
from specgrove_bench.stats import Spread
from specgrove_local.models import ensure_target

_ROWS = (1, 6, 12)
_PREFIX_LEN = 200
_REPEATS = 15
_MATRIX_PRODUCTS = ("quantized::linear", "aten::addmm", "aten::mm", "aten::linear")
_ATTENTION_PRODUCTS = ("aten::bmm", "aten::_softmax")


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A step of so many rows, in seconds; the median of the repeats."""

    num_rows: int
    step_s: float
    bare_s: float  # its matrix products alone, one after the other
    step_over_bare: Spread
    matrix_s: float
    attention_s: float

    @property
    def rest_s(self) -> float:
        return max(self.step_s - self.matrix_s - self.attention_s, 0.0)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ProfileRow:
        return cls(**{**values, "step_over_bare": Spread(**values["step_over_bare"])})


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="target's folder; default: the demo's")
    parser.add_argument("--weights", default="auto", choices=("auto", "float32", "fp16_packed"))
    parser.add_argument("--decoder", default="auto", choices=tuple(DecoderChoice))
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model or ensure_target(), arguments.weights, decoder=arguments.decoder)
    rows = profile_steps(loaded)
    if arguments.json:
        for row in rows:
            print(json.dumps(asdict(row)))
    else:
        print(markdown(rows))
    return 0


def markdown(rows: Sequence[ProfileRow]) -> str:
    """The table of a step's parts."""
    lines = ["| rows | step | bare products | step / bare | matrix products | attention products | the rest |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        parts = (row.matrix_s, row.attention_s, row.rest_s)
        columns = " | ".join(f"{1e3 * part:.1f} ms" for part in parts)
        lines.append(
            f"| {row.num_rows} | {1e3 * row.step_s:.1f} ms | {1e3 * row.bare_s:.1f} ms "
            f"| {row.step_over_bare.median:.2f} | {columns} |"
        )
    return "\n".join(lines)


def profile_steps(loaded: LoadedModel) -> list[ProfileRow]:
    """Steps of 1, 6 and 12 rows over a prefix, in this process."""
    cache = loaded.new_cache(max_tokens=1024)
    forward = PackedForward(loaded, cache)
    seq = cache.new_sequence()
    chain = range(_PREFIX_LEN)
    prefix = [place % loaded.vocab_size for place in chain]
    forward.run([SequenceRows(seq, prefix, chain, range(-1, _PREFIX_LEN - 1), [False] * _PREFIX_LEN)])
    cache.commit(seq, chain)

    def run(rows: int) -> float:
        started = time.perf_counter()
        forward.run([_tree_rows(seq, rows)])
        elapsed_s = time.perf_counter() - started
        cache.rollback(seq)
        return elapsed_s

    products = _products(loaded.model)
    return [_profile_row(rows, run, products) for rows in _ROWS]


def _profile_row(rows: int, run: Callable[[int], float], products: Sequence[tuple[nn.Module, int]]) -> ProfileRow:
    for _ in range(3):
        run(rows)
    times_s = [(run(rows), _bare_s(products, rows)) for _ in range(_REPEATS)]  # in turns: the machine is not quiet
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(_REPEATS):
            run(rows)
    events = profiler.key_averages()
    step_over_bare = Spread.of([step_s / bare_s for step_s, bare_s in times_s])
    assert step_over_bare is not None
    return ProfileRow(
        num_rows=rows,
        step_s=statistics.median(step_s for step_s, _ in times_s),
        bare_s=statistics.median(bare_s for _, bare_s in times_s),
        step_over_bare=step_over_bare,
        matrix_s=_mean_s(events, _MATRIX_PRODUCTS),
        attention_s=_mean_s(events, _ATTENTION_PRODUCTS),
    )


def _tree_rows(seq: CachedSequence, rows: int) -> SequenceRows:
    """A root and its children: as many rows as asked for."""
    return SequenceRows(seq, [7] * rows, [_PREFIX_LEN] * rows, [-1, *[0] * (rows - 1)], [True] * rows)


def _products(model: nn.Module) -> list[tuple[nn.Module, int]]:
    """Every matrix product of a step, each once, with the width of its input."""
    found: dict[int, tuple[nn.Module, int]] = {}
    for module in model.modules():
        product = module.all_columns if isinstance(module, PackedColumns) else module
        if isinstance(product, (PackedLinear, nn.Linear)):
            found[id(product)] = (product, product.in_features)
    return list(found.values())


@torch.inference_mode()
def _bare_s(products: Sequence[tuple[nn.Module, int]], rows: int) -> float:
    inputs = {width: torch.randn(1, rows, width) for _, width in products}
    started = time.perf_counter()
    for product, width in products:
        product(inputs[width])
    return time.perf_counter() - started


def _mean_s(events: object, prefixes: tuple[str, ...]) -> float:
    """Mean self time of a step, in seconds, in the operators whose names start with one of `prefixes`."""
    total_us = sum(
        event.self_cpu_time_total
        for event in events  # type: ignore[attr-defined]
        if event.key.startswith(prefixes)
    )
    return total_us / _REPEATS / 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
