"""A member's part in what was accepted can be told from the others'."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.mirror import AcceptedNode


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"specgrove:drafter_{name}_total", labels) or 0.0


def test_a_node_of_one_member_is_accepted_alone(registry: CollectorRegistry) -> None:
    metrics = DrafterMetrics(registry, ("ssm", "prompt_lookup"))
    metrics.nodes_accepted([AcceptedNode(0b11, 1), AcceptedNode(0b10, 2), AcceptedNode(0b10, 3), AcceptedNode(0, 4)])
    assert sample(registry, "num_accepted_tokens", member="prompt_lookup", position="0") == 1
    assert sample(registry, "num_accepted_tokens", member="ssm", position="0") == 1
    assert sample(registry, "num_accepted_tokens_alone", member="prompt_lookup") == 2
    assert sample(registry, "num_accepted_tokens_alone", member="ssm") == 0
