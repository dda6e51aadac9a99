"""Every place where the end of a growing text stood before, and what followed there: an online suffix automaton.

    text    a b c x a b d a b        the longest suffix that stood before is "a b": it ends at 1, 5 and 8
                          ^^^        its followers: d (latest), c, once each;  "b" stood at no other places: same state

A state is a set of end positions; the suffixes that share it differ only in length. `link` leads to the next shorter
suffix that stood at more places. Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text".

Differs from the textbook: states remember how often they stood in the text, online. For exact counts every suffix of
every token would have to be counted, and a repetitive text has as many different ones as it is long. Counted are the
`max_links` longest that stood before. So counts are exact in ordinary text, where there are fewer, and too low for the
short suffixes of long repetitions, where the long ones decide anyway.

Followers are kept in the order of their last occurrence, so that a look at the latest few is bounded as well. All work
is constant for a token, on average over the text: every transition is made or copied once, and there are less than
three for a token. Text takes about 140 bytes a token: a transition that is alone in its state, as most are, stands in
an array and not in a dict.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import islice

MAX_LINKS = 16
_ROOT = 0
_NONE = -1


@dataclass(frozen=True, slots=True)
class Match:
    """The last `length` tokens of a text, which stand in the indexed text too; length 0 matches everywhere."""

    state: int
    length: int


@dataclass(frozen=True, slots=True)
class Follower:
    """A token that came after a match, and how often."""

    token_id: int
    count: int


class SuffixAutomaton:
    """The index of one text; `max_links` bounds the work for counts (see above)."""

    def __init__(self, max_links: int = MAX_LINKS) -> None:
        self.num_tokens = 0
        self._max_links = max_links
        self._last = _ROOT  # the state of the whole text
        self._len = array("i", [0])  # of the longest suffix of each state
        self._link = array("i", [_NONE])
        self._count = array("i", [0])
        # The only follower of a state, or _NONE; a state with several has them in `_branches`, latest last.
        self._token = array("i", [_NONE])
        self._next = array("i", [_NONE])
        self._branches: dict[int, dict[int, int]] = {}

    def append(self, token_id: int) -> None:
        """Take in the next token of the text."""
        before = self._last
        self.num_tokens += 1
        self._last = state = self._new_state(self.num_tokens)
        above = before
        while above != _NONE and self._after(above, token_id) == _NONE:
            self._lead(above, token_id, state)
            above = self._link[above]
        if above != _NONE:
            self._link[state] = self._suffix_state(above, token_id)
        else:
            self._link[state] = _ROOT
        self._note_occurrence(before, token_id)

    def match(self) -> Match:
        """The longest suffix of the text that stood in it before."""
        state = max(self._link[self._last], _ROOT)
        return Match(state, self._len[state])

    def advance(self, match: Match, token_id: int) -> Match:
        """What `match` becomes when `token_id` comes next, without taking it in: again the longest there is."""
        state, length = match.state, match.length
        while (target := self._after(state, token_id)) == _NONE:
            state = self._link[state]
            if state == _NONE:
                return Match(_ROOT, 0)
            length = self._len[state]
        return Match(target, length + 1)

    def shorter(self, match: Match) -> Match | None:
        """The longest suffix of `match` that stood at more places; None when only the empty one is left."""
        state = self._link[match.state]
        return Match(state, self._len[state]) if state > _ROOT else None

    def followers(self, match: Match, max_followers: int) -> list[Follower]:
        """The tokens that came after `match`, the one that came last first."""
        branches = self._branches.get(match.state)
        if branches is not None:
            latest = islice(reversed(branches.items()), max_followers)
            return [Follower(token_id, self._count[state]) for token_id, state in latest]
        if self._token[match.state] == _NONE:
            return []
        return [Follower(self._token[match.state], self._count[self._next[match.state]])]

    def _suffix_state(self, above: int, token_id: int) -> int:
        """The state of the longest suffix that stood before: what follows `above`, split off if that is longer."""
        target = self._after(above, token_id)
        if self._len[target] == self._len[above] + 1:
            return target
        clone = self._new_state(self._len[above] + 1)
        self._link[clone] = self._link[target]
        self._count[clone] = self._count[target]
        self._copy_followers(target, clone)
        self._link[target] = clone
        while above != _NONE and self._after(above, token_id) == target:
            self._lead(above, token_id, clone)
            above = self._link[above]
        return clone

    def _note_occurrence(self, before: int, token_id: int) -> None:
        """Count the suffixes that end here, and make `token_id` the latest follower of those that ended just before."""
        state = self._last
        for _ in range(self._max_links + 1):
            if state <= _ROOT:
                break
            self._count[state] += 1
            state = self._link[state]
        context = self._link[before]
        for _ in range(self._max_links):
            if context == _NONE:
                break
            branches = self._branches.get(context)
            if branches is not None:
                branches[token_id] = branches.pop(token_id)
            context = self._link[context]

    def _new_state(self, length: int) -> int:
        self._len.append(length)
        self._link.append(_NONE)
        self._count.append(0)
        self._token.append(_NONE)
        self._next.append(_NONE)
        return len(self._len) - 1

    def _after(self, state: int, token_id: int) -> int:
        """Where `token_id` leads from `state`, or _NONE."""
        if self._token[state] == token_id:
            return self._next[state]
        branches = self._branches.get(state)
        return _NONE if branches is None else branches.get(token_id, _NONE)

    def _lead(self, state: int, token_id: int, target: int) -> None:
        """Let `token_id` lead from `state` to `target`."""
        branches = self._branches.get(state)
        if branches is not None:
            branches[token_id] = target
        elif self._token[state] in (_NONE, token_id):
            self._token[state], self._next[state] = token_id, target
        else:
            self._branches[state] = {self._token[state]: self._next[state], token_id: target}
            self._token[state] = self._next[state] = _NONE

    def _copy_followers(self, source: int, target: int) -> None:
        branches = self._branches.get(source)
        if branches is not None:
            self._branches[target] = dict(branches)
        self._token[target], self._next[target] = self._token[source], self._next[source]
