"""The ways to choose and to guess a token that the tables compare.

              the target's token               the SSM's children                     how it is measured
    greedy    its likeliest                    its likeliest                          replayed
    coupled   drawn with the shared noise      its likeliest under the same noise     replayed
    top-k     drawn with noise of its own      its likeliest                          replayed      (rule `naive`)
    sampled   drawn with noise of its own      drawn from its law, no repeats         replayed      (rule `naive`)
    mss       accepted or redrawn by the rule  drawn from its law, no repeats         the loop itself

Under the first four the target's tokens do not depend on what was drafted: they are written down once, without any
draft (`Trace`), and every tree is then compared with what was written. That is exact and needs no target. Under `mss`
the tokens follow from the drafts, so nothing can be replayed.

Children drawn without repeats are the first k under Gumbel noise (Kool, van Hoof, Welling 2019): the ranking of
`coupled`, under a seed that the target does not have.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule

_OTHER_SEED = 0x9E3779B97F4A7C15  # far from any seed that prompts are given


class Way(StrEnum):
    """One pairing of how the target chooses and how the SSM guesses."""

    GREEDY = "greedy"
    COUPLED = "coupled"
    NAIVE_TOP_K = "naive, top-k"
    NAIVE_SAMPLED = "naive, sampled"
    MSS = "mss"

    @property
    def is_greedy(self) -> bool:
        return self is Way.GREEDY

    @property
    def is_replayed(self) -> bool:
        return self is not Way.MSS

    @property
    def rule(self) -> Rule:
        """The rule that the target verifies by."""
        if self in (Way.NAIVE_TOP_K, Way.NAIVE_SAMPLED):
            return Rule.NAIVE
        return Rule.MSS if self is Way.MSS else Rule.COUPLED

    @property
    def told_rule(self) -> Rule:
        """The rule that the drafter is told: all but `mss` differ only in the noise it is told (`told_sampling`)."""
        return Rule.MSS if self is Way.MSS else Rule.COUPLED

    def told_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """What the drafter is told, so that it makes children as this way wants; `sampling` is the target's."""
        if self is Way.NAIVE_TOP_K:
            return SamplingParams(temperature=0.0)
        if self is Way.NAIVE_SAMPLED:
            return replace(sampling, seed=sampling.seed ^ _OTHER_SEED)
        return sampling


STOCHASTIC = (Way.NAIVE_SAMPLED, Way.NAIVE_TOP_K, Way.MSS, Way.COUPLED)
