"""The incremental index finds what a search through the whole text finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from specgrove_drafter.members.ngram_index import MAX_MATCH_LEN, MAX_NGRAM, MAX_OCCURRENCES, NgramIndex, Occurrence


def searched(tokens: list[int]) -> list[Occurrence]:
    for size in range(min(MAX_NGRAM, len(tokens)), 0, -1):
        suffix = tokens[-size:]
        ends = [end for end in range(size - 1, len(tokens) - 1) if tokens[end - size + 1 : end + 1] == suffix]
        found = []
        for end in reversed(ends):
            length = size
            while length < MAX_MATCH_LEN and length <= end and tokens[end - length] == tokens[len(tokens) - 1 - length]:
                length += 1
            found.append(Occurrence(end + 1, length))
        if found:
            return found[:MAX_OCCURRENCES]
    return []


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_occurrences_are_those_of_a_search(tokens: list[int]) -> None:
    index = NgramIndex(tokens)
    for length in range(1, len(tokens) + 1):
        index.append()
        assert index.occurrences() == searched(tokens[:length])
