"""A test aid: proposes random trees, to show that a bad drafter costs speed and never a token."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.member import MemberDraft
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal


class RandomMember:
    """Fills the whole budget with random tokens under random parents. Same seed and base, same tree."""

    name = "random"
    is_costly = False

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._seed = seed

    def draft(self, jobs: Sequence[DraftJob], rivals: Sequence[Proposal]) -> list[MemberDraft]:
        return [MemberDraft(self._propose(job)) for job in jobs]

    def release(self, session: SessionRef) -> None:
        pass

    def _propose(self, job: DraftJob) -> Proposal:
        generator = random.Random(f"{self._seed}:{job.base_hash}:{job.base_len}")
        proposal = Proposal()
        depths: dict[int, int] = {BELOW_ROOT: 0}
        paths: set[tuple[int, int]] = set()
        for _ in range(job.budget.max_nodes):
            parent = generator.choice(
                [node for node, depth in depths.items() if depth < job.budget.max_depth] or [BELOW_ROOT]
            )
            token_id = generator.randrange(self._vocab_size)
            if (parent, token_id) not in paths and job.budget.max_depth > 0:
                paths.add((parent, token_id))
                depths[proposal.add(parent, token_id, math.log(generator.uniform(0.3, 0.9)))] = depths[parent] + 1
        return proposal
