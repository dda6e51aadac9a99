"""A scheduler over a real cache, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import torch

from specgrove.draft import Draft
from specgrove.runtime.kv_cache import KVCache, KVShape
from specgrove.runtime.placement import Anywhere
from specgrove.sampling.noise import NoiseRows
from specgrove.tree import TokenTree
from specgrove_verifier.generation import Generation
from specgrove_verifier.mailbox import DraftBudget, DraftMailbox
from specgrove_verifier.ranking import Ranking
from specgrove_verifier.scheduler import Scheduled, Scheduler
from specgrove_verifier.stopping import StopChecker
from support.generation_requests import make_request

BLOCK_SIZE = 4


class Bench:
    """A scheduler over a real cache, with steps that commit one token for each generation that reaches its end."""

    def __init__(
        self,
        *,
        num_blocks: int,
        max_step_rows: int = 64,
        max_sessions: int = 16,
        ranking: Ranking = Ranking(),
        has_prefix_cache: bool = False,
        shares_blocks: bool = False,
    ) -> None:
        self.cache = KVCache(KVShape(1, 1, 1, torch.float32), num_blocks=num_blocks, block_size=BLOCK_SIZE)
        if shares_blocks:
            self.cache.allocator.placement = Anywhere()
        self.scheduler = Scheduler(
            self.cache,
            max_sessions=max_sessions,
            max_step_rows=max_step_rows,
            ranking=ranking,
            has_prefix_cache=has_prefix_cache,
        )
        self._keys = count(1)

    def add(
        self,
        prompt_len: int,
        *,
        token_id: int = 5,
        priority: int = 0,
        arrived_s: float = 0.0,
        committed: Sequence[int] = (),
    ) -> Generation:
        request = make_request([token_id] * prompt_len, 100, priority=priority, committed=committed)
        generation = Generation(
            next(self._keys),
            request,
            checker=StopChecker(request.stop, eos_token_ids=(), room=1000, tokenizer=None),
            noise=NoiseRows(0, 8),
            mailbox=DraftMailbox(64),
            listener=lambda output: None,
            arrived_s=arrived_s,
        )
        self.scheduler.add(generation)
        return generation

    def step(self, token_id: int = 6) -> list[Scheduled]:
        batch = self.scheduler.compose()
        for scheduled in batch:
            self.cache.reserve(scheduled.seq, scheduled.num_rows)  # as the forward does: a no-op by now
            rows = scheduled.rows()
            self.cache.append_rows(rows.seq, rows.parents, rows.positions)
            if scheduled.reaches_end:
                scheduled.generation.append([token_id])
            self.scheduler.keep(scheduled.generation, range(scheduled.num_chain))
        return batch

    def draft(self, generation: Generation, paths: Sequence[Sequence[int]]) -> None:
        """A tree for the coming step of `generation`."""
        tree = TokenTree.from_paths(generation.tokens[-1], paths)
        generation.mailbox.expect(generation.base, DraftBudget(64, 64), frozenset({1}))
        base = generation.base
        draft = Draft(generation.key, base.length, base.hash, tree.token_ids[1:], tree.parents[1:], tree.members[1:])
        assert generation.mailbox.offer(1, draft).is_kept


def keys(batch: list[Scheduled]) -> list[int]:
    return [scheduled.generation.key for scheduled in batch]
