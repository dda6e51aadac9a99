"""Prompt lookup: proposes what followed earlier occurrences of the text's last tokens. Costs no forward.

After Saxena's prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding). Differs from it: the index is a
suffix automaton (any match length, every occurrence counts), continuations branch at every depth, and each node carries
an estimate that the session itself teaches: one that copies soon trusts its copies, one that does not stops wasting
nodes on them. Nothing of one session's text reaches another's drafts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specgrove.sampling.noise import gumbel_at
from specgrove.sampling.rules import Rule
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.follower_rates import HitRates, learn_next, likely_next
from specgrove_drafter.members.member import MemberDraft
from specgrove_drafter.members.suffix_automaton import Match, SuffixAutomaton
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal

MAX_TOKENS_READ = 2048  # a draft; longer contexts are read over several
NOISE_WEIGHT = 0.4
NOISY_SPARES = 2  # nodes grown for one in the budget where the noise will change their order


class PromptLookupMember:
    """An ensemble member without a model."""

    name = "prompt_lookup"
    is_costly = False

    def __init__(self) -> None:
        self._sessions: dict[SessionRef, _IndexedText] = {}

    def draft(self, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        return [self._draft(job) for job in jobs]

    def release(self, session: SessionRef) -> None:
        self._sessions.pop(session, None)

    def _draft(self, job: DraftJob) -> MemberDraft:
        indexed = self._sessions.get(job.session)
        if indexed is None or not indexed.continues_as(job):
            indexed = self._sessions[job.session] = _IndexedText(job.token_ids, job.opened_len)
        indexed.token_ids, indexed.opened_len = job.token_ids, job.opened_len
        if not indexed.read_to(job.base_len):
            return MemberDraft(Proposal(), is_behind=True)
        if indexed.num_tokens > job.base_len:  # the base is gone
            return MemberDraft(Proposal())
        return MemberDraft(_propose(indexed, job))


@dataclass(slots=True, eq=False)
class _IndexedText:
    """A mirror's token list, the first `num_tokens` of which are indexed."""

    token_ids: Sequence[int]
    opened_len: int
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    rates: HitRates = field(default_factory=HitRates)

    @property
    def num_tokens(self) -> int:
        return self.automaton.num_tokens

    def continues_as(self, job: DraftJob) -> bool:
        """Whether what is indexed is the beginning of the base; a new opening is compared in full."""
        indexed = slice(0, self.num_tokens)
        return self.token_ids is job.token_ids or self.token_ids[indexed] == job.token_ids[indexed]

    def read_to(self, base_len: int) -> bool:
        """Index the base, learning from its generated part; whether the end was reached."""
        for _ in range(min(base_len - self.num_tokens, MAX_TOKENS_READ)):
            token_id = self.token_ids[self.num_tokens]
            if self.num_tokens >= self.opened_len:
                learn_next(self.automaton, self.rates, token_id)
            self.automaton.append(token_id)
        return self.num_tokens >= base_len


def _propose(indexed: _IndexedText, job: DraftJob) -> Proposal:
    """The likeliest nodes below the indexed text, best first; as many as the budget can hold."""
    is_noisy = job.rule is Rule.COUPLED and not job.sampling.is_greedy
    branches = _grow(indexed, job, job.budget.max_nodes * (NOISY_SPARES if is_noisy else 1))
    probs = [branch.prob for branch in branches]
    if is_noisy and branches:
        probs = _given_noise(branches, job)
    proposal = Proposal()
    for branch, prob in zip(branches, probs, strict=True):
        proposal.add(branch.parent, branch.token_id, math.log(max(prob, 1e-9)))
    return proposal


@dataclass(frozen=True, slots=True)
class _Branch:
    parent: int  # number of the branch above, or BELOW_ROOT
    token_id: int
    depth: int
    prob: float  # that the target takes it when it stands at the parent


def _grow(indexed: _IndexedText, job: DraftJob, max_branches: int) -> list[_Branch]:
    """Best-first by the estimated probability of the whole path."""
    grown: list[_Branch] = []
    waiting: list[tuple[float, int, _Branch, Match]] = []  # the number keeps equal ones in order
    num_seen = 0

    def offer_children(parent: int, above: Match, path_prob: float, depth: int) -> None:
        nonlocal num_seen
        for token_id, prob in likely_next(indexed.automaton, above, indexed.rates).items():
            heapq.heappush(waiting, (-path_prob * prob, num_seen, _Branch(parent, token_id, depth, prob), above))
            num_seen += 1

    if max_branches > 0 and job.budget.max_depth > 0:
        offer_children(BELOW_ROOT, indexed.automaton.match(), 1.0, 1)
    while waiting and len(grown) < max_branches:
        negative_path_prob, _, branch, above = heapq.heappop(waiting)
        grown.append(branch)
        if branch.depth < job.budget.max_depth and branch.token_id not in job.stop_token_ids:
            below = indexed.automaton.advance(above, branch.token_id)
            offer_children(len(grown) - 1, below, -negative_path_prob, branch.depth + 1)
    return grown


def _given_noise(branches: Sequence[_Branch], job: DraftJob) -> list[float]:
    """The estimates, now that the shared noise of each token is known.

    A token of probability p is drawn when log p + g beats the Gumbel maximum of the others, log(1 - p) + G:
    P(G < g + log p - log(1 - p)) = exp(-exp(-g) * (1 - p) / p), whose mean over g is p again. But p here is a mean over
    places where the token was all but certain and places where it was out of the question, and in both the noise
    matters less than that: so it counts for a part only.
    """
    positions = torch.tensor([job.base_len - 1 + branch.depth for branch in branches])  # int64 [N]
    token_ids = torch.tensor([branch.token_id for branch in branches])  # int64 [N]
    noise = gumbel_at(job.sampling.seed, positions, token_ids).tolist()
    return [
        (1.0 - NOISE_WEIGHT) * branch.prob
        + NOISE_WEIGHT * math.exp(-math.exp(-g) * (1.0 - branch.prob) / max(branch.prob, 1e-9))
        for g, branch in zip(noise, branches, strict=True)
    ]
