"""Where a target step's time goes: `python -m specgrove_bench.step_profile`, with bench/ on the path.

Times packed forwards of trees of 1, 6 and 12 rows over a prefix in this process, alone, beside the bare matrix products
of the same weights one after the other. What a step takes beyond those and attention (by torch's profiler) is the rest:
norms, rotation, cache, Python, dispatch, and products that were faster alone; shown by operator too. Where operators
are compiled (`--cpu-kernels`), attention is the whole compiled call: rotation and cache are in it. `--json` writes
all of it; `--max-ratio` and `--max-rest` make the exit status 1 where a step takes longer than that. On a machine that
others use, `--clock cpu` counts this thread's own time, which is all of it with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.int8_linear import Int8Linear
from specgrove.runtime.kv_cache import CachedSequence
from specgrove.runtime.loading import CpuKernelChoice, DecoderChoice, LoadedModel, load_model
from specgrove.runtime.packed_linear import PackedColumns, PackedLinear
from specgrove_bench.stats import Spread
from specgrove_kernels.cpu import compiled
from specgrove_local.models import ensure_target

_MATRIX_PRODUCTS = ("quantized::linear", "aten::addmm", "aten::mm", "aten::linear")
_COMPILED = ("norm", "add_and_norm", "gate", "attend")  # of `layer_operators`
_ATTENTION = ("aten::bmm", "aten::baddbmm", "aten::_softmax", "compiled::attend")
_WARM_UPS = 3
_HEAD = (
    "| sessions x rows | step | bare products | ratio | of the fastest | attention | the rest | share |",
    "|---|---|---|---|---|---|---|---|",
)
_CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}

_Product = tuple[Callable[[torch.Tensor], torch.Tensor], int]  # and the width of its input


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator's part of the rest, a step, by the profiler: its own overhead is in it."""

    name: str
    num_calls: float
    self_ms: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One shape of step. Medians, except `best_ratio`: the fastest step over the fastest bare products."""

    sessions: int
    rows: int  # of each session
    step_ms: float
    bare_ms: float
    step_over_bare: Spread  # over pairs taken in turns
    best_ratio: float
    attention_ms: float
    rest_ms: float
    rest_share: float
    rest_by_operator: tuple[OperatorTime, ...]

    @property
    def ratio(self) -> float:
        return self.step_over_bare.median

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> StepTimes:
        operators = tuple(OperatorTime(**operator) for operator in values["rest_by_operator"])
        spread = Spread(**values["step_over_bare"])
        return cls(**{**values, "step_over_bare": spread, "rest_by_operator": operators})


def read(path: Path) -> list[StepTimes]:
    """What `--json` left in `path`."""
    return [StepTimes.from_json(values) for values in json.loads(path.read_text())]


def markdown(measured: Sequence[StepTimes]) -> str:
    """The table of a step's parts."""
    return "\n".join([*_HEAD, *map(_line, measured)])


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    loaded = load_model(
        arguments.model or ensure_target(),
        arguments.weights,
        decoder=arguments.decoder,
        cpu_kernels=arguments.cpu_kernels,
    )
    measured = []
    print("\n".join(_HEAD))
    for sessions in arguments.sessions:
        for rows in arguments.rows:
            times = measure(loaded, sessions, rows, arguments.prefix_len, arguments.repeats, arguments.clock)
            print(_line(times), flush=True)
            measured.append(times)
    for times in measured:
        print(f"\nThe rest at {times.sessions} x {times.rows}, calls and ms a step (profiled):")
        for operator in times.rest_by_operator[: arguments.operators]:
            print(f"  {operator.num_calls:7.1f} {operator.self_ms:8.3f}  {operator.name}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(times) for times in measured], indent=1) + "\n")
    return int(any(times.ratio > arguments.max_ratio or times.rest_share > arguments.max_rest for times in measured))


def measure(
    loaded: LoadedModel, sessions: int, rows: int, prefix_len: int, repeats: int, clock: str = "wall"
) -> StepTimes:
    """Times of steps of `sessions` trees of `rows` rows each, below prefixes of `prefix_len` tokens."""
    cache = loaded.new_cache(max_tokens=sessions * (prefix_len + rows + 32))
    forward = PackedForward(loaded, cache)
    chain = range(prefix_len)
    seqs = [cache.new_sequence() for _ in range(sessions)]
    for seq in seqs:
        forward.run([SequenceRows(seq, [7] * prefix_len, chain, range(-1, prefix_len - 1), [False] * prefix_len)])
        cache.commit(seq, chain)
    batch = [_tree_rows(seq, prefix_len, rows) for seq in seqs]

    now = _CLOCKS[clock]

    def step_s() -> float:
        started = now()
        forward.run(batch)
        elapsed_s = now() - started
        for seq in seqs:
            cache.rollback(seq)
        return elapsed_s

    products = _products(loaded.model)
    for _ in range(_WARM_UPS):
        step_s()
    # In turns: the machine may not be quiet.
    steps_s, bare_s = zip(*((step_s(), _bare_s(products, sessions * rows, now)) for _ in range(repeats)), strict=True)
    with _compiled_by_name(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            step_s()
    events = {event.key: event for event in profiler.key_averages()}
    # Profiled times are the wall's; the products, in both, say what they are on the clock.
    scale = statistics.median(bare_s) / sum(
        event.self_cpu_time_total for name, event in events.items() if name.startswith(_MATRIX_PRODUCTS)
    )
    operators = [
        OperatorTime(name, event.count / repeats, 1e3 * scale * event.self_cpu_time_total)
        for name, event in events.items()
    ]
    step_ms, bare_ms = (1e3 * statistics.median(column) for column in (steps_s, bare_s))
    attention_ms = sum(one.self_ms for one in operators if one.name.startswith(_ATTENTION))
    rest_ms = max(step_ms - bare_ms - attention_ms, 0.0)
    others = [one for one in operators if not one.name.startswith(_MATRIX_PRODUCTS + _ATTENTION)]
    return StepTimes(
        sessions,
        rows,
        step_ms,
        bare_ms,
        _spread([step / bare for step, bare in zip(steps_s, bare_s, strict=True)]),
        min(steps_s) / min(bare_s),
        attention_ms,
        rest_ms,
        rest_ms / step_ms,
        tuple(sorted(others, key=lambda one: -one.self_ms)),
    )


@contextmanager
def _compiled_by_name() -> Iterator[None]:
    """Let the profiler see compiled operators too; without them nothing is changed."""
    if not compiled.is_available():
        yield
        return
    from specgrove_kernels.cpu import layer_operators

    with ExitStack() as patches:
        for name in _COMPILED:
            patches.enter_context(patch.object(layer_operators, name, _named(name, getattr(layer_operators, name))))
        yield


def _named(name: str, operator: Callable[..., None]) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        with record_function(f"compiled::{name}"):
            operator(*arguments)

    return run


def _spread(values: Sequence[float]) -> Spread:
    spread = Spread.of(values)
    assert spread is not None
    return spread


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="target's folder; default: the demo's")
    parser.add_argument("--weights", default="auto", choices=("auto", "float32", "fp16_packed"))
    parser.add_argument("--decoder", default="auto", choices=tuple(DecoderChoice))
    parser.add_argument("--cpu-kernels", default="auto", choices=tuple(CpuKernelChoice))
    parser.add_argument("--sessions", type=_numbers, default=(1,), help="numbers of sessions in a step, 1,8")
    parser.add_argument("--rows", type=_numbers, default=(1, 6, 12), help="rows of each session, 1,6,12")
    parser.add_argument("--prefix-len", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--operators", type=int, default=12, help="how many of the rest's operators are shown")
    parser.add_argument("--clock", default="wall", choices=tuple(_CLOCKS))
    parser.add_argument("--json", type=Path, help="file for everything that was measured")
    parser.add_argument("--max-ratio", type=float, default=float("inf"), help="exit 1 above this step / bare products")
    parser.add_argument("--max-rest", type=float, default=1.0, help="exit 1 above this share of the rest, 0 to 1")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _line(times: StepTimes) -> str:
    columns = [f"{part:.1f} ms" for part in (times.attention_ms, times.rest_ms)]
    return " | ".join(
        [
            f"| {times.sessions} x {times.rows}",
            f"{times.step_ms:.1f} ms",
            f"{times.bare_ms:.1f} ms",
            f"{times.ratio:.2f}",
            f"{times.best_ratio:.2f}",
            *columns,
            f"{times.rest_share:.0%} |",
        ]
    )


def _tree_rows(seq: CachedSequence, prefix_len: int, rows: int) -> SequenceRows:
    """A root and its children: as many rows as asked for."""
    return SequenceRows(seq, [7] * rows, [prefix_len] * rows, [-1, *[0] * (rows - 1)], [True] * rows)


def _products(model: nn.Module) -> list[_Product]:
    """Every matrix product of a step, each once, with the width of its input."""
    found: dict[int, Any] = {}
    for module in model.modules():
        product = module.all_columns if isinstance(module, PackedColumns) else module
        if isinstance(product, (PackedLinear, Int8Linear, nn.Linear)):
            found[id(product)] = product
    return [
        (product.forward if isinstance(product, nn.Linear) else product.bare(), product.in_features)
        for product in found.values()
    ]


@torch.inference_mode()
def _bare_s(products: Sequence[_Product], rows: int, now: Callable[[], float]) -> float:
    inputs = {width: torch.randn(1, rows, width) for _, width in products}
    started = now()
    for product, width in products:
        product(inputs[width])
    return now() - started


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
