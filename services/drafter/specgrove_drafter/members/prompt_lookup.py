"""Prompt lookup: proposes what followed earlier occurrences of the text's last tokens. Costs no forward.

After Saxena's prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding). Differs from it: several
continuations make a tree, and each node carries an estimate learned from this very session, by match length: a session
that copies soon trusts its copies, one that does not stops wasting nodes on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specgrove.sampling.noise import gumbel_at
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.member import MemberDraft
from specgrove_drafter.members.ngram_index import MAX_MATCH_LEN, NgramIndex, Occurrence
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal

MAX_BRANCHES = 3
MAX_TOKENS_READ = 2048  # a draft; longer contexts are read over several
RECENCY_DECAY = 0.8  # weight of an occurrence against the next later one
# P(the follower is right) by match length 1, 2, ... before the session has shown its own rates.
PRIOR_HIT_RATES = (0.18, 0.3, 0.45, 0.55, 0.6, 0.65, 0.7, 0.75)
PRIOR_TRIALS = 6.0
NOISE_WEIGHT = 0.4


@dataclass(slots=True)
class HitRates:
    """How often the first follower was right, by match length; starts from the prior."""

    hits: list[float] = field(default_factory=lambda: [rate * PRIOR_TRIALS for rate in PRIOR_HIT_RATES])
    trials: list[float] = field(default_factory=lambda: [PRIOR_TRIALS] * len(PRIOR_HIT_RATES))

    def observe(self, match_len: int, is_hit: bool) -> None:
        bucket = min(match_len, len(self.hits)) - 1
        self.hits[bucket] += is_hit
        self.trials[bucket] += 1.0

    def rate(self, match_len: int) -> float:
        bucket = min(match_len, len(self.hits)) - 1
        return self.hits[bucket] / self.trials[bucket]


@dataclass(slots=True, eq=False)
class _IndexedSession:
    index: NgramIndex
    rates: HitRates = field(default_factory=HitRates)


@dataclass(frozen=True, slots=True)
class Continuation:
    """A stretch of the text to copy: from index `start`, whose first token is right with probability `prob`."""

    start: int
    match_len: int
    prob: float


class PromptLookupMember:
    """An ensemble member without a model."""

    name = "prompt_lookup"
    is_costly = False

    def __init__(self) -> None:
        self._sessions: dict[SessionRef, _IndexedSession] = {}

    def draft(self, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        return [self._draft(job) for job in jobs]

    def release(self, session: SessionRef) -> None:
        self._sessions.pop(session, None)

    def _draft(self, job: DraftJob) -> MemberDraft:
        indexed = self._sessions.get(job.session)
        if indexed is None or indexed.index.token_ids is not job.token_ids:
            indexed = self._sessions[job.session] = _IndexedSession(NgramIndex(job.token_ids))
        if not _read_on(indexed, job):
            return MemberDraft(Proposal(), is_behind=True)
        if job.is_catching_up:
            return MemberDraft(Proposal())
        return MemberDraft(_propose(indexed, job))


def _read_on(indexed: _IndexedSession, job: DraftJob) -> bool:
    """Index the base, learning from its generated part; whether the end was reached."""
    index = indexed.index
    for _ in range(min(job.base_len - index.num_tokens, MAX_TOKENS_READ)):
        if index.num_tokens >= job.opened_len:
            foreseen = continuations(index, indexed.rates)
            if foreseen:
                is_hit = index.token_ids[foreseen[0].start] == index.token_ids[index.num_tokens]
                indexed.rates.observe(foreseen[0].match_len, is_hit)
        index.append()
    return index.num_tokens >= job.base_len


def continuations(index: NgramIndex, rates: HitRates) -> list[Continuation]:
    """What may follow the text, likeliest first, one for each distinct next token."""
    found = index.occurrences()
    if not found:
        return []
    weights: dict[int, float] = {}
    best: dict[int, Occurrence] = {}
    for age, occurrence in enumerate(found):
        token_id = index.token_ids[occurrence.follower]
        weights[token_id] = weights.get(token_id, 0.0) + rates.rate(occurrence.match_len) * RECENCY_DECAY**age
        if token_id not in best or occurrence.match_len > best[token_id].match_len:
            best[token_id] = occurrence
    longest = max(occurrence.match_len for occurrence in found)
    # The hit rate is that of the best guess, so it bounds what the branches share between them only loosely.
    scale = rates.rate(longest) / max(weights.values())
    ranked = sorted(weights, key=lambda token_id: -weights[token_id])[:MAX_BRANCHES]
    return [
        Continuation(best[token_id].follower, best[token_id].match_len, min(weights[token_id] * scale, 0.95))
        for token_id in ranked
    ]


def _propose(indexed: _IndexedSession, job: DraftJob) -> Proposal:
    proposal = Proposal()
    depths: list[int] = []
    probs: list[float] = []
    places: list[tuple[int, int]] = []  # (parent, token id)
    for continuation in continuations(indexed.index, indexed.rates):
        parent = BELOW_ROOT
        for offset in range(min(job.budget.max_depth, job.base_len - continuation.start)):
            token_id = job.token_ids[continuation.start + offset]
            places.append((parent, token_id))
            depths.append(offset + 1)
            # Below a hit the match is one token longer.
            longer = min(continuation.match_len + offset, MAX_MATCH_LEN)
            probs.append(continuation.prob if offset == 0 else indexed.rates.rate(longer))
            parent = len(places) - 1
            if token_id in job.stop_token_ids:
                break
    if not job.sampling.is_greedy and places:
        probs = _given_noise(probs, [token_id for _, token_id in places], depths, job)
    for (parent, token_id), prob in zip(places, probs, strict=True):
        proposal.add(parent, token_id, math.log(max(prob, 1e-9)))
    return proposal


def _given_noise(probs: Sequence[float], token_ids: Sequence[int], depths: Sequence[int], job: DraftJob) -> list[float]:
    """The estimates, now that the shared noise of each token is known.

    A token of probability p is drawn when log p + g beats the Gumbel maximum of the others, log(1 - p) + G:
    P(G < g + log p - log(1 - p)) = exp(-exp(-g) * (1 - p) / p), whose mean over g is p again. But p here is a mean over
    places where the token was all but certain and places where it was out of the question, and in both the noise
    matters less than that: so it counts for a part only.
    """
    positions = torch.tensor([job.base_len - 1 + depth for depth in depths])
    noise = gumbel_at(job.sampling.seed, positions, torch.tensor(token_ids)).tolist()
    return [
        (1.0 - NOISE_WEIGHT) * p + NOISE_WEIGHT * math.exp(-math.exp(-g) * (1.0 - p) / p)
        for g, p in zip(noise, probs, strict=True)
    ]
