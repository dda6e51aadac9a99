"""The verifier's metrics; names as vLLM users know them, under `specgrove:`."""

from __future__ import annotations

from specgrove.sampling.rules import Rule
from specgrove.telemetry import CollectorRegistry, Counter, Gauge, Histogram
from specgrove_verifier.account import Account, Pacing
from specgrove_verifier.cache_metrics import CacheMetrics
from specgrove_verifier.mailbox import DraftOutcome
from specgrove_verifier.member_metrics import MemberMetrics
from specgrove_verifier.open_load import RefusalReason

_STEP_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class EngineMetrics:
    """Counters rather than ratios: rates and means are for the dashboard to take."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._drafts = Counter("specgrove:spec_decode_num_drafts", "Token trees verified", registry=registry)
        self._draft_tokens = Counter(
            "specgrove:spec_decode_num_draft_tokens", "Draft nodes verified", registry=registry
        )
        self._accepted = Counter("specgrove:spec_decode_num_accepted_tokens", "Draft tokens kept", registry=registry)
        self._accepted_per_pos = Counter(
            "specgrove:spec_decode_num_accepted_tokens_per_pos",
            "Trees accepted at least to this depth",
            ["position"],
            registry=registry,
        )
        self._drafts_by_rule = Counter(
            "specgrove:spec_decode_num_drafts_by_rule", "Token trees verified, by rule", ["rule"], registry=registry
        )
        self._accepted_by_rule = Counter(
            "specgrove:spec_decode_num_accepted_tokens_by_rule",
            "Draft tokens kept, by rule",
            ["rule"],
            registry=registry,
        )
        self.members = MemberMetrics(registry)
        self._steps = Counter("specgrove:num_steps", "Target forwards", registry=registry)
        self._committed = Counter("specgrove:generation_tokens", "Committed tokens", registry=registry)
        self._step_s = Histogram(
            "specgrove:step_seconds", "Time of a target forward", buckets=_STEP_BUCKETS_S, registry=registry
        )
        self._step_rows = Histogram(
            "specgrove:step_rows", "Rows of a target forward", buckets=_ROW_BUCKETS, registry=registry
        )
        self._draft_s = Histogram(
            "specgrove:draft_round_trip_seconds", "Commit to tree", buckets=_STEP_BUCKETS_S, registry=registry
        )
        self._dropped = Counter(
            "specgrove:stale_drafts", "Drafts that were dropped, by reason", ["reason"], registry=registry
        )
        self._fallbacks = Counter(
            "specgrove:draft_fallbacks", "Steps that went on without a draft, by reason", ["reason"], registry=registry
        )
        self._feature_steps = Counter(
            "specgrove:feature_steps", "Target forwards whose states were read for drafters", registry=registry
        )
        self._refused_features = Counter(
            "specgrove:feature_requests_refused",
            "Drafters that asked for states this target does not have",
            registry=registry,
        )
        self._finished = Counter(
            "specgrove:request_success", "Generations that ended, by reason", ["finished_reason"], registry=registry
        )
        self._running = Gauge("specgrove:num_requests_running", "Generations in the engine", registry=registry)
        self._waiting = Gauge("specgrove:num_requests_waiting", "Generations waiting", registry=registry)
        self.cache = CacheMetrics(registry)
        self._rejections = Counter(
            "specgrove:admission_rejections",
            "Generations refused for the load, by reason",
            ["reason"],
            registry=registry,
        )
        self._drafters = Gauge("specgrove:num_drafters", "Drafters attached", registry=registry)
        self._budget_nodes = Gauge("specgrove:budget_nodes", "Draft nodes granted to each session", registry=registry)
        self._in_turns = Gauge(
            "specgrove:budget_in_turns", "1 while sessions are verified in turns, 0 while together", registry=registry
        )
        self._expected_rate = Gauge(
            "specgrove:budget_expected_tokens_per_second", "Committed tokens expected of such grants", registry=registry
        )
        self._observed_rate = Gauge(
            "specgrove:budget_observed_tokens_per_second", "Committed tokens seen under them", registry=registry
        )
        self._budget_error = Gauge(
            "specgrove:budget_error_perc", "Gap between the two, 0 to 1 of what was seen", registry=registry
        )

    def watch_budget(self, account: Account) -> None:
        """Let what the budget controller expected, and what came of it, be seen."""
        self._budget_nodes.set_function(lambda: float(account.num_nodes))
        self._in_turns.set_function(lambda: float(account.pacing is Pacing.IN_TURNS))
        self._expected_rate.set_function(lambda: account.expected_tokens_per_s)
        self._observed_rate.set_function(lambda: account.observed_tokens_per_s)
        self._budget_error.set_function(lambda: account.error)

    def record_step(self, num_rows: int, seconds: float) -> None:
        self._steps.inc()
        self._step_s.observe(seconds)
        self._step_rows.observe(num_rows)

    def set_load(self, *, num_running: int, num_waiting: int) -> None:
        self._running.set(num_running)
        self._waiting.set(num_waiting)

    def record_commit(self, num_nodes: int, num_accepted: int, num_committed: int, rule: Rule) -> None:
        self._committed.inc(num_committed)
        if num_nodes:
            self._drafts.inc()
            self._draft_tokens.inc(num_nodes)
            self._accepted.inc(num_accepted)
            self._drafts_by_rule.labels(str(rule)).inc()
            self._accepted_by_rule.labels(str(rule)).inc(num_accepted)
            for position in range(num_accepted):
                self._accepted_per_pos.labels(str(position)).inc()

    def record_draft(self, outcome: DraftOutcome, latency_s: float | None = None) -> None:
        if not outcome.is_kept:
            self._dropped.labels(str(outcome)).inc()
        elif latency_s is not None:
            self._draft_s.observe(max(latency_s, 0.0))

    def record_fallback(self, reason: str) -> None:
        self._fallbacks.labels(reason).inc()

    def record_feature_step(self) -> None:
        self._feature_steps.inc()

    def record_refused_features(self) -> None:
        self._refused_features.inc()

    def record_rejection(self, reason: RefusalReason) -> None:
        self._rejections.labels(str(reason)).inc()

    def record_finish(self, reason: str) -> None:
        self._finished.labels(reason).inc()

    def set_drafters(self, count: int) -> None:
        self._drafters.set(count)
