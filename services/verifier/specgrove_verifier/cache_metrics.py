"""Metrics of the KV cache, as vLLM names them under `vllm:`: what prefixes spared, what was thrown out."""

from __future__ import annotations

from specgrove.telemetry import CollectorRegistry, Counter, Gauge
from specgrove_verifier.placements import Placements


class CacheMetrics:
    """Follows running totals that are kept elsewhere, on the engine's thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._usage = Gauge("specgrove:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1", registry=registry)
        self._queries = Counter(
            "specgrove:prefix_cache_queries", "Tokens of generations that got their first place", registry=registry
        )
        self._hits = Counter(
            "specgrove:prefix_cache_hits", "Those of them whose keys and values were cached", registry=registry
        )
        self._evictions = Counter(
            "specgrove:prefix_cache_evictions", "Cached KV blocks that gave way to others", registry=registry
        )
        self._preemptions = Counter(
            "specgrove:num_preemptions", "Generations that gave their blocks back to come again", registry=registry
        )
        self._followed: dict[Counter, int] = {}

    def follow(self, placements: Placements, num_evictions: int, usage: float) -> None:
        """Let what has been counted so far be seen."""
        self._usage.set(usage)
        self._raise(self._queries, placements.num_queried_tokens)
        self._raise(self._hits, placements.num_hit_tokens)
        self._raise(self._evictions, num_evictions)
        self._raise(self._preemptions, placements.num_preemptions)

    def _raise(self, counter: Counter, total: int) -> None:
        counter.inc(total - self._followed.get(counter, 0))
        self._followed[counter] = total
