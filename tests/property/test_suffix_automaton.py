"""The suffix automaton finds what a search through the whole text finds, for constant work a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgrove_drafter.members.suffix_automaton import MAX_LINKS, Match, SuffixAutomaton

EVERYTHING = 10_000
texts = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size - 1), min_size=1, max_size=40))


def indexed(tokens: Sequence[int], max_links: int = EVERYTHING) -> SuffixAutomaton:
    automaton = SuffixAutomaton(max_links)
    for token_id in tokens:
        automaton.append(token_id)
    return automaton


def ends_of(tokens: Sequence[int], word: Sequence[int]) -> list[int]:
    """Where `word` ends in `tokens`: the index after it."""
    size = len(word)
    return [end for end in range(size, len(tokens) + 1) if list(tokens[end - size : end]) == list(word)]


def searched(tokens: list[int], guess: list[int]) -> list[int]:
    """The longest suffix of `tokens + guess` that stands in `tokens`; before its end if nothing is guessed."""
    whole = tokens + guess
    for size in range(len(whole), 0, -1):
        ends = ends_of(tokens, whole[-size:])
        if ends and (guess or ends[0] < len(tokens)):
            return whole[-size:]
    return []


def followers_of(tokens: list[int], word: list[int]) -> list[tuple[int, int]]:
    """(token, count) of what came after `word`, the one that came last first."""
    after = [tokens[end] for end in ends_of(tokens, word) if end < len(tokens)]
    return [(token_id, after.count(token_id)) for token_id in dict.fromkeys(reversed(after))]


def found(automaton: SuffixAutomaton, match: Match) -> list[tuple[int, int]]:
    return [(follower.token_id, follower.count) for follower in automaton.followers(match, EVERYTHING)]


@settings(deadline=None)
@given(texts, st.lists(st.integers(0, 3), max_size=6))
def test_match_and_followers_are_those_of_a_search(tokens: list[int], guess: list[int]) -> None:
    automaton = indexed(tokens)
    match = automaton.match()
    for num_guessed in range(len(guess) + 1):
        word = searched(tokens, guess[:num_guessed])
        assert match.length == len(word)
        assert found(automaton, match) == followers_of(tokens, word)
        if num_guessed < len(guess):
            match = automaton.advance(match, guess[num_guessed])
    assert automaton.num_tokens == len(tokens)


@settings(deadline=None)
@given(texts)
def test_shorter_matches_are_the_longest_suffixes_that_stood_at_more_places(tokens: list[int]) -> None:
    automaton = indexed(tokens)
    match = automaton.match()
    word = searched(tokens, [])
    while word:
        places = len(ends_of(tokens, word))
        word = next((word[skip:] for skip in range(1, len(word)) if len(ends_of(tokens, word[skip:])) > places), [])
        shorter = automaton.shorter(match)
        assert (0 if shorter is None else shorter.length) == len(word)
        if shorter is not None:
            match = shorter
            assert found(automaton, match) == followers_of(tokens, word)


@settings(deadline=None)
@given(texts, st.integers(0, 3))
def test_counts_leave_out_occurrences_below_the_longest_repeated_suffixes(tokens: list[int], max_links: int) -> None:
    automaton = indexed(tokens, max_links)
    match = automaton.match()
    word = searched(tokens, [])
    if not word:
        return
    counts = {follower.token_id: follower.count for follower in automaton.followers(match, EVERYTHING)}
    for token_id, exact in followers_of(tokens, word):
        longer = [*word, token_id]
        counted = sum(num_longer(tokens[:end], longer) <= max_links for end in ends_of(tokens, longer))
        assert counts[token_id] == counted
        assert 1 <= counted <= exact


def num_longer(tokens: list[int], word: list[int]) -> int:
    """How many different sets of places the suffixes of `tokens` that are rarer than `word` have."""
    suffixes = (tokens[start:] for start in range(len(tokens) - len(word) + 1))
    return len({len(ends_of(tokens, suffix)) for suffix in suffixes}) - 1


class CountingAutomaton(SuffixAutomaton):
    """Counts the looks at transitions, the changes and the copies."""

    def __init__(self) -> None:
        super().__init__()
        self.num_steps = 0

    def _after(self, state: int, token_id: int) -> int:
        self.num_steps += 1
        return super()._after(state, token_id)

    def _lead(self, state: int, token_id: int, target: int) -> None:
        self.num_steps += 1
        super()._lead(state, token_id, target)

    def _copy_followers(self, source: int, target: int) -> None:
        super()._copy_followers(source, target)
        self.num_steps += len(self.followers(Match(target, 1), EVERYTHING))


def fibonacci_word(length: int) -> list[int]:
    before, word = [1], [0]
    while len(word) < length:
        before, word = word, word + before
    return word[:length]


def random_word(length: int, size: int) -> list[int]:
    return [(place * 2654435761 % 2**32) * size >> 32 for place in range(length)]


# Words on which naive indexes take quadratic time, and ordinary ones.
WORDS: dict[str, Callable[[int], list[int]]] = {
    "one token": lambda length: [7] * length,
    "all different": lambda length: list(range(length)),
    "fibonacci": fibonacci_word,
    "a run, then another token": lambda length: [1] * (length // 2) + [2] * (length - length // 2),
    "one token with many followers": lambda length: [0 if place % 2 else place for place in range(length)],
    "a rising run": lambda length: [token for run in range(length) for token in [*[0] * (run % 50), run]][:length],
    "a copy": lambda length: list(range(length // 2)) * 2,
    "two tokens": lambda length: random_word(length, 2),
    "a small vocabulary": lambda length: random_word(length, 50),
}


@pytest.mark.parametrize("word", WORDS)
def test_work_for_a_token_does_not_grow_with_the_text(word: str) -> None:
    for length in (400, 6400):
        automaton = CountingAutomaton()
        for token_id in WORDS[word](length):
            automaton.append(token_id)
        assert automaton.num_steps <= 12 * length


def test_a_look_at_the_latest_followers_reads_no_more() -> None:
    automaton = indexed([token for follower in range(5000) for token in (9999, follower)], MAX_LINKS)
    match = automaton.advance(Match(0, 0), 9999)
    assert [follower.token_id for follower in automaton.followers(match, 3)] == [4999, 4998, 4997]


def test_memory_is_two_states_and_three_transitions_a_token_at_most() -> None:
    for make in WORDS.values():
        automaton = indexed(make(2000), MAX_LINKS)
        num_states = len(automaton._len)
        num_transitions = sum(len(automaton.followers(Match(state, 1), EVERYTHING)) for state in range(num_states))
        assert num_states <= 2 * 2000
        assert num_transitions <= 3 * 2000
