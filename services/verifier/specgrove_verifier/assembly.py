"""Builds an engine around a loaded model: shared by the service's `__main__`, the bench and the tests."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.kv_cache import KVCache
from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.rules import Rule
from specgrove.telemetry import CollectorRegistry
from specgrove.text import Tokenizer
from specgrove_verifier.account import Pacing
from specgrove_verifier.admission import Admission, TargetFacts
from specgrove_verifier.budget import Budget, FixedBudget, MeasuredBudget
from specgrove_verifier.config import VerifierConfig
from specgrove_verifier.cost_curve import CostCurve, CurveStore
from specgrove_verifier.drafter_pool import DrafterPool
from specgrove_verifier.engine import Engine
from specgrove_verifier.features import FeatureSource
from specgrove_verifier.mailbox import DraftBudget
from specgrove_verifier.metrics import EngineMetrics
from specgrove_verifier.open_load import LoadLimits
from specgrove_verifier.ranking import Ranking
from specgrove_verifier.scheduler import Scheduler
from specgrove_verifier.waiting import DraftWait

_log = logging.getLogger(__name__)
_WARM_PREFIX_LEN = 128


@dataclass(frozen=True, slots=True)
class TargetTokenizer:
    """What is known of the target's tokens; a folder without tokenizer.json serves token ids only."""

    tokenizer: Tokenizer | None
    vocab_hash: str
    eos_token_ids: tuple[int, ...]


def read_tokenizer(folder: Path, vocab_size: int) -> TargetTokenizer:
    if (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.load(folder)
        return TargetTokenizer(tokenizer, tokenizer.vocab_hash, tokenizer.eos_token_ids)
    return TargetTokenizer(None, f"vocabulary-of-{vocab_size}", ())


def measure_curve(
    forward: PackedForward, cache: KVCache, max_rows: int, known: Sequence[tuple[int, float]] | None = None
) -> CostCurve:
    """The cost curve of this model on this machine up to `max_rows`: about five seconds for 135M parameters on two idle
    cores, a quarter of a second where an earlier start left its points (`known`)."""
    seq = cache.new_sequence()
    prefix_len = min(_WARM_PREFIX_LEN, cache.num_blocks * cache.block_size // 2)
    chain = SequenceRows(seq, [0] * prefix_len, range(prefix_len), range(-1, prefix_len - 1), [False] * prefix_len)
    forward.run([chain])
    cache.commit(seq, range(prefix_len))

    def run_step(rows: int) -> float:
        started = time.perf_counter()
        parents = [-1, *[0] * (rows - 1)]
        forward.run([SequenceRows(seq, [0] * rows, [prefix_len] * rows, parents, [True] * rows)])
        forward.wait()
        elapsed_s = time.perf_counter() - started
        cache.rollback(seq)
        return elapsed_s

    try:
        resumed = None if known is None else CostCurve.resumed(known, run_step)
        if resumed is not None:
            return resumed
        return CostCurve.measure(run_step, max_rows=min(max_rows, cache.num_blocks * cache.block_size - prefix_len))
    finally:
        cache.release(seq)


def curve_of(config: VerifierConfig, loaded: LoadedModel, forward: PackedForward, cache: KVCache) -> CostCurve:
    """The cost curve: by the points on disk if this hardware and model left some, else measured and left there."""
    max_rows = min(config.max_step_rows, config.max_sessions * (config.max_nodes + 1))
    if not config.cost_cache:
        return measure_curve(forward, cache, max_rows)
    folder = (
        Path.home() / ".cache" / "specgrove" / "cost-curves" if config.cost_cache == "auto" else Path(config.cost_cache)
    )
    store, made_on = CurveStore(folder), [*_hardware(loaded.device), *_facts_of(loaded), max_rows]
    curve = measure_curve(forward, cache, max_rows, store.load(made_on))
    store.save(made_on, curve)
    return curve


def _hardware(device: torch.device) -> list[object]:
    """What a step's cost depends on besides the model."""
    if device.type == "cuda":
        return [torch.__version__, torch.cuda.get_device_name(device)]
    capabilities = torch.cpu.get_capabilities()
    cpu = (capabilities.get("cpu_name"), capabilities.get("architecture"), torch.backends.cpu.get_cpu_capability())
    return [torch.__version__, *cpu, os.cpu_count(), torch.get_num_threads()]


def _facts_of(loaded: LoadedModel) -> list[object]:
    config = Path(loaded.source) / "config.json"
    written = config.stat().st_mtime_ns if config.is_file() else 0
    attention = "reference" if loaded.paged is None else ("graphs" if loaded.paged.new_capture else "eager")
    operators = "compiled" if getattr(loaded.decoder, "may_compile", False) else "torch"
    kind = f"{type(loaded.decoder).__name__}, {attention}, {operators}"
    return [version("specgrove"), loaded.source, written, loaded.weights, kind, loaded.kv_shape, loaded.vocab_size]


def build_engine(
    config: VerifierConfig,
    loaded: LoadedModel,
    registry: CollectorRegistry,
    on_broken: Callable[[], None] = lambda: None,
) -> Engine:
    """An engine, not yet started. Measures the cost curve when the budget asks for it."""
    cache = loaded.new_cache(max_tokens=config.kv_tokens, block_size=config.block_size)
    forward = PackedForward(loaded, cache)
    limits = DraftBudget(config.max_nodes, config.max_depth)
    pacings = tuple(Pacing) if config.pacing == "auto" else (Pacing(config.pacing),)
    budget: Budget = FixedBudget(limits, pacings[0])
    metrics = EngineMetrics(registry)
    if config.budget == "measured" and config.max_nodes > 0:
        curve = curve_of(config, loaded, forward, cache)
        _log.info("cost of a step", extra={"ms_by_rows": {rows: round(1e3 * s, 1) for rows, s in curve.points.items()}})
        budget = MeasuredBudget(limits, curve, pacings=pacings)
        metrics.watch_budget(budget.account)
    return Engine(
        forward,
        cache,
        Scheduler(
            cache,
            max_sessions=config.max_sessions,
            max_step_rows=config.max_step_rows,
            ranking=Ranking(config.priority_ageing_s),
            has_prefix_cache=config.prefix_cache == "on",
        ),
        DrafterPool(config.drafters_per_session),
        budget,
        DraftWait(config.max_draft_wait_ms / 1000, config.draft_wait == "auto"),
        FeatureSource(loaded, metrics),
        metrics,
        config.max_waiting_s or math.inf,
        on_broken,
    )


def build_admission(config: VerifierConfig, loaded: LoadedModel, target: TargetTokenizer, model_name: str) -> Admission:
    return Admission(
        TargetFacts(
            model_name=model_name,
            vocab_size=loaded.vocab_size,
            max_context_len=context_len(config, loaded),
            eos_token_ids=tuple(token_id for token_id in target.eos_token_ids if token_id < loaded.vocab_size),
            tokenizer=target.tokenizer,
            device=config.device,
            rule=Rule(config.rule),
        )
    )


def load_limits(config: VerifierConfig) -> LoadLimits:
    return LoadLimits(config.max_sessions + config.max_waiting, config.max_open_tokens or 16 * config.kv_tokens)


def context_len(config: VerifierConfig, loaded: LoadedModel) -> int:
    """The longest sequence that can be served: one generation alone must fit the cache, a tree included."""
    return min(loaded.max_context_len, config.kv_tokens - config.max_nodes - 1)
