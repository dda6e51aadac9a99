"""What comes next, judged by what followed earlier: shares of followers, backed off from the longest matching suffix.

    text  ... x y z | p ... x y z | p ... y z | q ... x y z ?       "x y z" matches: p, p        "y z" matches: p, p, q

    P(next is p) = hit_rate(3)
    P(next is q) = (1 - hit_rate(3)) * hit_rate(2)          several new followers share this by how often they came

`hit_rate(n)` is how often the next token was among the followers of a match of n tokens: learned from the very session,
since one that copies and one that does not differ by far. Prediction by partial matching with exclusion (Cleary and
Witten 1984), its escape probability being one minus the hit rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specgrove_drafter.members.suffix_automaton import Match, SuffixAutomaton

MAX_CONTEXTS = 2  # a third adds a thousandth to the tokens per step
MAX_FOLLOWERS = 8  # of one match, those that came last
# Hit rate by match length 1, 2, ... before a session has shown its own: measured on the target's answers, greedy and at
# temperature 0.8, to Spec-Bench prompts and to prompts of its own.
PRIOR_HIT_RATES = (0.33, 0.54, 0.66, 0.71, 0.77, 0.79, 0.81, 0.9)
PRIOR_TRIALS = 6.0


@dataclass(slots=True)
class HitRates:
    """How often the next token was among the followers of a match, by match length; starts from the prior."""

    hits: list[float] = field(default_factory=lambda: [rate * PRIOR_TRIALS for rate in PRIOR_HIT_RATES])
    trials: list[float] = field(default_factory=lambda: [PRIOR_TRIALS] * len(PRIOR_HIT_RATES))

    def observe(self, match_len: int, is_hit: bool) -> None:
        bucket = min(match_len, len(self.hits)) - 1
        self.hits[bucket] += is_hit
        self.trials[bucket] += 1.0

    def rate(self, match_len: int) -> float:
        bucket = min(match_len, len(self.hits)) - 1
        return self.hits[bucket] / self.trials[bucket]


def likely_next(text: SuffixAutomaton, match: Match, rates: HitRates) -> dict[int, float]:
    """The tokens that may come after `match` with their probabilities, together below 1; at most 16 of them."""
    probs: dict[int, float] = {}
    rest = 1.0  # the chance that no longer match was right
    for context in _contexts(text, match):
        followers = text.followers(context, MAX_FOLLOWERS)
        # Those of the longer match are among them; what is counted there is not counted again.
        new = [follower for follower in followers if follower.token_id not in probs]
        total = sum(follower.count for follower in new)
        if followers:
            hit_rate = rates.rate(context.length)
            probs |= {follower.token_id: rest * hit_rate * follower.count / total for follower in new}
            rest *= 1.0 - hit_rate
    return probs


def learn_next(text: SuffixAutomaton, rates: HitRates, token_id: int) -> None:
    """Learn from `token_id` coming next, before the text takes it in."""
    for context in _contexts(text, text.match()):
        followers = text.followers(context, MAX_FOLLOWERS)
        is_hit = any(follower.token_id == token_id for follower in followers)
        if followers:
            rates.observe(context.length, is_hit)
        if is_hit:
            return  # shorter matches count only where the longer ones fail


def _contexts(text: SuffixAutomaton, match: Match) -> list[Match]:
    """`match` and the next shorter ones with more occurrences, without the empty one."""
    contexts: list[Match] = []
    context: Match | None = match
    while context is not None and context.length and len(contexts) < MAX_CONTEXTS:
        contexts.append(context)
        context = text.shorter(context)
    return contexts
