"""Stop strings are found at the same character however the text is cut, and never leak."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgrove.text import StopMatch, StopStringMatcher

SMALL = st.text(st.sampled_from("abE "), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("abE "), min_size=1, max_size=4), min_size=1, max_size=4)


def first_match(text: str, stops: list[str]) -> StopMatch | None:
    """By definition: the earliest end, and there the longest."""
    for end in range(1, len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            longest = max(here, key=len)
            return StopMatch(longest, end - len(longest))
    return None


@given(text=SMALL, stops=STOPS, data=st.data())
def test_any_chunking_finds_the_first_stop_string_and_leaks_nothing(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    matcher = StopStringMatcher(stops)
    released, rest = "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        released += matcher.push(rest[:size])
        rest = rest[size:]
        assert not any(stop in released for stop in stops)
    released += matcher.finish()
    expected = first_match(text, stops)
    assert matcher.match == expected
    assert released == (text if expected is None else text[: expected.start])


@given(text=SMALL, stops=STOPS)
def test_text_is_held_back_only_while_it_can_become_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopStringMatcher(stops)
    released = ""
    for char in text:
        released += matcher.push(char)
        if matcher.match is not None:
            return
        held = matcher.held_len
        assert held == 0 or any(
            stop.startswith(text[len(released) : len(released) + held]) and held < len(stop) for stop in stops
        )


def test_a_match_that_does_not_count_is_released_and_a_later_one_counts() -> None:
    matcher = StopStringMatcher(["END"])
    assert matcher.push("an END", can_match=False) == "an END"
    assert matcher.push(" and the END") == " and the "
    assert matcher.match == StopMatch("END", 15)


def test_an_overlapping_match_after_one_that_does_not_count_is_found() -> None:
    matcher = StopStringMatcher(["aba"])
    assert matcher.push("aba", can_match=False) == "ab"
    assert matcher.push("ba") == ""
    assert matcher.match == StopMatch("aba", 2)


def test_nothing_follows_a_match() -> None:
    matcher = StopStringMatcher(["."])
    assert matcher.push("Yes. No. ") == "Yes"
    assert matcher.push("more") == "" == matcher.finish()


def test_without_stop_strings_everything_passes() -> None:
    assert StopStringMatcher([]).push("anything") == "anything"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStringMatcher([""])
