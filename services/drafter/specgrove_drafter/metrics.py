"""What operators see of a drafter: counters, gauges and histograms; rates are for the reader to compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specgrove.telemetry import CollectorRegistry, Counter, Gauge, Histogram
from specgrove.tree import TokenTree
from specgrove_drafter.mirror import AcceptedNode

_PREFIX = "specgrove:drafter_"
_LATENCY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
_NODE_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128)


class DrafterMetrics:
    """All metrics of one drafter; safe to use from any thread. `member_names[i]` is bit i of a node's member mask."""

    def __init__(self, registry: CollectorRegistry, member_names: Sequence[str]) -> None:
        self._member_names = tuple(member_names)
        self.num_drafts = Counter(f"{_PREFIX}num_drafts", "Trees sent.", registry=registry)
        self.num_draft_tokens = Counter(f"{_PREFIX}num_draft_tokens", "Nodes of sent trees.", registry=registry)
        self.tree_nodes = Histogram(
            f"{_PREFIX}tree_nodes", "Nodes of a sent tree.", buckets=_NODE_BUCKETS, registry=registry
        )
        self.draft_latency_s = Histogram(
            f"{_PREFIX}draft_latency_seconds",
            "From the arrival of a base to its tree being ready.",
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.round_s = Histogram(
            f"{_PREFIX}round_seconds", "Time of one round of drafts.", buckets=_LATENCY_BUCKETS_S, registry=registry
        )
        self.batch_sessions = Histogram(
            f"{_PREFIX}batch_sessions", "Sessions drafted together.", buckets=_BATCH_BUCKETS, registry=registry
        )
        self.num_forwards = Counter(f"{_PREFIX}num_forwards", "Packed SSM forwards.", ["member"], registry=registry)
        self.num_forward_rows = Counter(f"{_PREFIX}num_forward_rows", "Rows of them.", ["member"], registry=registry)
        self.num_feature_fed_rows = Counter(
            f"{_PREFIX}num_feature_fed_rows",
            "Rows whose states met the target's features.",
            ["member"],
            registry=registry,
        )
        self.num_refused_features = Counter(
            f"{_PREFIX}num_refused_features", "Features of the wrong length, ignored.", registry=registry
        )
        self.num_proposed = Counter(
            f"{_PREFIX}num_proposed_tokens",
            "Nodes sent, by proposer and depth.",
            ["member", "position"],
            registry=registry,
        )
        self.num_accepted = Counter(
            f"{_PREFIX}num_accepted_tokens",
            "Sent nodes that the next commit took, by proposer and depth.",
            ["member", "position"],
            registry=registry,
        )
        self.num_accepted_alone = Counter(
            f"{_PREFIX}num_accepted_tokens_alone",
            "Sent nodes that the next commit took and no other member had proposed.",
            ["member"],
            registry=registry,
        )
        self.num_ahead_guesses = Counter(
            f"{_PREFIX}num_ahead_guesses", "Outcomes of a verification that were drafted under.", registry=registry
        )
        self.num_ahead_hits = Counter(
            f"{_PREFIX}num_ahead_hits", "Bases that were one of the guesses.", registry=registry
        )
        self.num_ahead_forwards = Counter(
            f"{_PREFIX}num_ahead_forwards", "SSM forwards run before their base was known.", registry=registry
        )
        self.num_ahead_wasted_forwards = Counter(
            f"{_PREFIX}num_ahead_wasted_forwards", "Those for bases whose guesses were all wrong.", registry=registry
        )
        self.ahead_hidden_s = Counter(
            f"{_PREFIX}ahead_hidden_seconds", "Draft time that was over when its base arrived.", registry=registry
        )
        self.is_drafting_ahead = Gauge(
            f"{_PREFIX}is_drafting_ahead", "Whether idle time is spent on drafting ahead.", registry=registry
        )
        self.ahead_waste_share = Gauge(
            f"{_PREFIX}ahead_waste_share", "Wasted ahead forwards among all of late.", registry=registry
        )
        self.calibration_error = Gauge(
            f"{_PREFIX}calibration_error",
            "Mean gap between estimated and observed acceptance of nodes of late.",
            ["member"],
            registry=registry,
        )
        self.num_declined = Counter(f"{_PREFIX}num_declined", "Declines sent.", ["reason"], registry=registry)
        self.num_stale = Counter(f"{_PREFIX}num_stale_drafts", "Drafts whose base was gone.", registry=registry)
        self.num_malformed = Counter(f"{_PREFIX}num_malformed_messages", "Messages refused.", registry=registry)
        self.mirrors = Gauge(f"{_PREFIX}mirrors", "Sessions mirrored.", registry=registry)
        self.connections = Gauge(f"{_PREFIX}connections", "Verifiers that are connected.", registry=registry)
        self.num_connects = Counter(f"{_PREFIX}num_connects", "Streams that got a Welcome.", registry=registry)
        self.num_connect_failures = Counter(
            f"{_PREFIX}num_connect_failures", "Streams that ended or never began.", ["reason"], registry=registry
        )

    def observe_round(self, num_sessions: int, elapsed_s: float) -> None:
        self.batch_sessions.observe(num_sessions)
        self.round_s.observe(elapsed_s)

    def forward_observer(self, member: str) -> Callable[[int], None]:
        """What to call with the number of rows of each of `member`'s forwards: its labels are looked up once."""
        forwards, rows = self.num_forwards.labels(member), self.num_forward_rows.labels(member)

        def observe(num_rows: int) -> None:
            forwards.inc()
            rows.inc(num_rows)

        return observe

    def fed_rows_observer(self, member: str) -> Callable[[int], None]:
        """The same for rows that see features."""
        return self.num_feature_fed_rows.labels(member).inc

    def draft_sent(self, tree: TokenTree, draft_s: float) -> None:
        self.num_drafts.inc()
        self.num_draft_tokens.inc(tree.num_draft_nodes)
        self.tree_nodes.observe(tree.num_draft_nodes)
        self.draft_latency_s.observe(draft_s)
        for node in range(1, tree.num_nodes):
            self._count(self.num_proposed, tree.members[node], tree.depths[node])

    def nodes_accepted(self, nodes: Iterable[AcceptedNode]) -> None:
        for node in nodes:
            self._count(self.num_accepted, node.members, node.depth)
            if node.members.bit_count() == 1 and (bit := node.members.bit_length() - 1) < len(self._member_names):
                self.num_accepted_alone.labels(self._member_names[bit]).inc()

    def draft_was_stale(self) -> None:
        self.num_stale.inc()

    def declined(self, reason: str) -> None:
        self.num_declined.labels(reason).inc()

    def _count(self, counter: Counter, members: int, depth: int) -> None:
        for bit, name in enumerate(self._member_names):
            if members >> bit & 1:
                # Positions count from 0, as those of vLLM's spec_decode metrics do.
                counter.labels(name, str(depth - 1)).inc()
