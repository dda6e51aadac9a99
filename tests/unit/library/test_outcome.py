"""The account that a generation keeps of its steps."""

from __future__ import annotations

from itertools import pairwise

from specgrove.outcome import SpeculationStats


def test_a_step_without_a_tree_counts_no_draft() -> None:
    stats = SpeculationStats()
    stats.record_step(num_draft_nodes=0, tree_depth=0, num_accepted=0, num_committed=1)
    assert (stats.num_steps, stats.num_drafts, stats.num_committed_tokens) == (1, 0, 1)
    assert stats.drafted_per_pos == stats.accepted_per_pos == []


def test_positions_count_trees_that_came_at_least_so_far() -> None:
    stats = SpeculationStats()
    for accepted in (3, 1, 0, 2):
        stats.record_step(num_draft_nodes=4, tree_depth=3, num_accepted=accepted, num_committed=accepted + 1)
    assert stats.accepted_per_pos == [3, 2, 1]
    assert stats.drafted_per_pos == [4, 4, 4]
    assert sum(stats.accepted_per_pos) == stats.num_accepted_tokens
    assert all(later <= earlier for earlier, later in pairwise(stats.accepted_per_pos))
