"""Every way in which an engine attends and multiplies, on tiny models, and which plain decoding each must equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specgrove.runtime.decoder import ModuleDecoder
from specgrove.runtime.few_rows import FewRows
from specgrove.runtime.int8_linear import is_int8_supported
from specgrove.runtime.lean_decoder import LeanDecoder
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.runtime.packed_linear import is_packing_supported
from specgrove_kernels.backend import has_triton, reference_kernels, triton_kernels
from specgrove_kernels.cpu import compiled
from support.paged_models import ReplayingCapture, paged
from support.tiny_models import write_tiny_model


@dataclass(slots=True)
class Backend:
    """A loaded model, and how it is known that it ran the way its name says."""

    loaded: LoadedModel
    num_uses: Callable[[], int] | None = None  # of what only this backend has, where loading does not say it all


@dataclass(frozen=True, slots=True)
class _Way:
    truth: str  # the backend whose plain decoding it must equal
    load: Callable[[dict[str, Path]], Backend]
    is_there: bool = True  # on this machine


def _lean(weights: str, cpu_kernels: str) -> Callable[[dict[str, Path]], Backend]:
    def load(folders: dict[str, Path]) -> Backend:
        loaded = load_model(folders["llama"], weights, decoder="lean", attention="reference", cpu_kernels=cpu_kernels)
        assert isinstance(loaded.decoder, LeanDecoder)
        assert (loaded.weights, loaded.paged) == (weights, None)
        assert loaded.decoder.has_compiled_operators == (cpu_kernels == "auto")
        return Backend(loaded, _compiled_steps(loaded.decoder) if cpu_kernels == "auto" else None)

    return load


def _compiled_steps(decoder: LeanDecoder) -> Callable[[], int]:
    """How many steps have run through the compiled operators from here on."""
    num_calls = [0]

    def counted(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_and_count(*arguments: Any) -> Any:
            num_calls[0] += 1
            return run(*arguments)

        return run_and_count

    decoder._run_compiled = counted(decoder._run_compiled)  # type: ignore[method-assign]
    few = decoder._few_rows
    if few is not None:
        decoder._few_rows = _FewRows(few, counted(few.states))  # type: ignore[assignment]
    return lambda: num_calls[0]


class _FewRows:
    """A decoder's way for few rows, with `states` in place of its own."""

    def __init__(self, own: FewRows, states: Callable[..., Any]) -> None:
        self._own = own
        self.states = states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _module(architecture: str) -> Callable[[dict[str, Path]], Backend]:
    def load(folders: dict[str, Path]) -> Backend:
        loaded = load_model(folders[architecture], "float32", decoder="transformers", attention="reference")
        assert isinstance(loaded.decoder, ModuleDecoder)
        assert (loaded.paged, loaded.has_windows) == (None, architecture == "gemma2")
        return Backend(loaded)

    return load


def _paged(*, is_recorded: bool) -> Callable[[dict[str, Path]], Backend]:
    def load(folders: dict[str, Path]) -> Backend:
        right, capture, num_calls = reference_kernels(), ReplayingCapture(), [0]

        def attend(*arguments: Any, **options: Any) -> Any:
            num_calls[0] += 1
            return right.paged_tree_attention(*arguments, **options)

        kernels = replace(right, paged_tree_attention=attend)
        plain = load_model(folders["llama"], "float32", attention="reference")
        loaded = paged(plain, kernels=kernels, capture=capture if is_recorded else None)
        return Backend(loaded, lambda: capture.num_replayed if is_recorded else num_calls[0])

    return load


def _interpreted(folders: dict[str, Path]) -> Backend:
    loaded = load_model(folders["llama"], "float32", attention="triton")
    assert loaded.paged is not None
    assert loaded.paged.kernels == triton_kernels()
    return Backend(loaded)


_WAYS = {
    "lean": _Way("lean", _lean("float32", "off")),
    "transformers": _Way("lean", _module("llama")),
    "windows": _Way("windows", _module("gemma2")),
    "paged": _Way("lean", _paged(is_recorded=False)),
    "recorded": _Way("lean", _paged(is_recorded=True)),
    "fp16": _Way("fp16", _lean("fp16_packed", "off"), is_packing_supported()),
    "fp16 compiled": _Way("fp16", _lean("fp16_packed", "auto"), is_packing_supported() and compiled.is_available()),
    "int8": _Way("int8", _lean("int8_packed", "off"), is_int8_supported()),
    "int8 compiled": _Way("int8", _lean("int8_packed", "auto"), is_int8_supported() and compiled.is_available()),
    "triton": _Way("lean", _interpreted, has_triton()),
}
AVAILABLE = tuple(name for name, way in _WAYS.items() if way.is_there)


class Backends:
    """Loads each when it is asked for."""

    def __init__(self, root: Path) -> None:
        self.folders = {name: write_tiny_model(root / name, name, seed=1) for name in ("llama", "gemma2")}
        self._loaded: dict[str, Backend] = {}

    def __getitem__(self, name: str) -> Backend:
        if name not in self._loaded:
            self._loaded[name] = _WAYS[name].load(self.folders)
        return self._loaded[name]

    def truth_of(self, name: str) -> str:
        """The backend that runs the same weights in plain torch."""
        return _WAYS[name].truth
