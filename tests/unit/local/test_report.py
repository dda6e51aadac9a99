"""The figures under the demo's answer."""

from __future__ import annotations

from specgrove_local.grpc_client import Answer, Figures
from specgrove_local.report import acceptance_by_depth, comparison_table, first_difference


def figures(**changes: object) -> Figures:
    defaults: dict[str, object] = {
        "num_steps": 4,
        "num_drafts": 4,
        "num_draft_tokens": 16,
        "num_accepted_tokens": 6,
        "num_committed_tokens": 10,
        "accepted_per_depth": (3, 1),
        "drafted_per_depth": (4, 2),
        "prefill_s": 0.2,
        "decode_s": 0.9,
    }
    return Figures(**(defaults | changes))  # type: ignore[arg-type]


def test_time_per_token_leaves_the_first_token_to_the_prefill() -> None:
    assert figures().time_per_token_s == 0.1
    assert figures(num_committed_tokens=1, decode_s=0.0).time_per_token_s == 0.0


def test_acceptance_counts_the_trees_that_reached_each_depth() -> None:
    assert acceptance_by_depth(figures()) == "1: 75% (3/4)  2: 50% (1/2)"
    assert acceptance_by_depth(figures(accepted_per_depth=(), drafted_per_depth=(2,))) == "1: 0% (0/2)"
    assert acceptance_by_depth(figures(accepted_per_depth=(), drafted_per_depth=())) == "nothing was drafted"


def test_answers_differ_where_the_first_token_does_and_where_one_ends() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_the_table_names_a_difference() -> None:
    one = Answer(token_ids=[1, 2], figures=figures())
    other = Answer(token_ids=[1, 3], figures=figures(num_steps=10, decode_s=1.8))
    table = comparison_table(one, other)
    assert "NO: they differ from token 2 on" in table
    assert "2.00x" in table
