"""Which shape the trees of a job get: the client's, or the drafter's own; ranked children, or drawn ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specgrove.sampling.rules import Rule, needs_child_laws
from specgrove.tree import ExpansionConfig
from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.trees.child_sampler import ChildSampler
from specgrove_drafter.trees.growth import ExpansionPolicy, GrowthPolicy
from specgrove_drafter.trees.sampled_growth import SampledPolicy

NaiveChildren = Literal["topk", "sampled"]


@dataclass(frozen=True, slots=True)
class JobPolicies:
    """`own` is the drafter's shape, `sampler` draws children where a job wants them drawn."""

    own: GrowthPolicy
    sampler: ChildSampler
    naive_children: NaiveChildren = "topk"

    def policy_of(self, job: DraftJob) -> GrowthPolicy:
        shape = ExpansionPolicy(ExpansionConfig(job.expansion)) if job.expansion else self.own
        return SampledPolicy(shape, self.sampler) if self._draws_children(job) else shape

    def _draws_children(self, job: DraftJob) -> bool:
        if needs_child_laws(job.rule, job.sampling.temperature):
            return True
        return job.rule is Rule.NAIVE and self.naive_children == "sampled" and not job.sampling.is_greedy
