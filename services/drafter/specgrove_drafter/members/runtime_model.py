"""A `DraftModel` over the model runtime: one SSM with its KV cache, shared by all mirrors.

    cached prefix of a session            rows in flight
    [ the whole base, root included ]  ←  r0 (child of the root)  ←  r2 ...
                                          r1 (another child)

Between two drafts the tree's rows stay in flight. When the next base arrives, its new tokens are walked down these
rows: the accepted path is already computed and is committed rather than run again, so that usually one row (the
target's own token) is all a new base costs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.kv_cache import CachedSequence, KVCache, OutOfBlocks
from specgrove.runtime.loading import LoadedModel
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.draft_model import ROOT_ROW, Expanded, NodeRow
from specgrove_drafter.members.law import LawRow, rank_children
from specgrove_drafter.trees.growth import Children

_log = logging.getLogger(__name__)
NO_CHILDREN = Children()
# A base that is further behind than this is read over several calls, so that one long context does not hold up the
# drafts of everybody else.
MAX_CATCH_UP_ROWS = 512


@dataclass(slots=True, eq=False)
class _CachedSession:
    """What this model has computed for one session."""

    seq: CachedSequence
    token_ids: Sequence[int]  # the mirror's list at the last draft
    row_of: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent row, token) -> row in flight
    last_draft: int = 0


class RuntimeDraftModel:
    """One SSM on one device. Owned by the engine's thread.

    `max_cached_tokens` bounds the KV cache over all sessions; when it is full the session drafted longest ago loses its
    cache (not its mirror) and is read again when its turn comes.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        target_vocab_size: int,
        max_cached_tokens: int,
        max_catch_up_rows: int = MAX_CATCH_UP_ROWS,
        on_forward: Callable[[int], None] = lambda num_rows: None,
    ) -> None:
        self._loaded = loaded
        self._cache: KVCache = loaded.new_cache(max_tokens=max_cached_tokens)
        self._forward = PackedForward(loaded, self._cache)
        vocab = loaded.draft_vocab
        self._to_target = None if vocab is None else vocab.to_target.to(loaded.device)
        self._num_inputs = loaded.vocab_size if vocab is None else vocab.to_draft.numel()
        # A padded SSM may know ids that the target does not.
        self._num_outputs = target_vocab_size if vocab is None else vocab.to_target.numel()
        self._max_catch_up_rows = max_catch_up_rows
        self._on_forward = on_forward
        self._sessions: dict[SessionRef, _CachedSession] = {}
        self._num_drafts = 0

    @property
    def num_cached_sessions(self) -> int:
        return len(self._sessions)

    def max_depth(self, job: DraftJob) -> int:
        # A child of the root stands at position base_len and is read when it is expanded.
        return max(0, self._loaded.max_context_len - job.base_len)

    def release(self, session: SessionRef) -> None:
        cached = self._sessions.pop(session, None)
        if cached is not None:
            self._cache.release(cached.seq)

    def start(self, jobs: Sequence[DraftJob], num_children: int) -> list[Children | None]:
        self._num_drafts += 1
        rows_left = self._max_catch_up_rows
        results: list[Children | None] = [NO_CHILDREN] * len(jobs)
        batch: list[tuple[int, SequenceRows]] = []
        unread = {index: self._settle(job) for index, job in enumerate(jobs) if self._can_read(job)}
        # Those that need least go first: a session in mid-stream never waits for somebody's prompt.
        for index in sorted(unread, key=lambda index: unread[index]):
            num_rows = min(unread[index], rows_left)
            if num_rows == 0:
                results[index] = None
                continue
            rows = self._base_rows(jobs[index], num_rows, is_last=num_rows == unread[index])
            if self._reserve(rows.seq, num_rows):
                rows_left -= num_rows
                batch.append((index, rows))
        if not batch:
            return results
        logits = self._run([rows for _, rows in batch])
        for index, rows in batch:
            self._cache.commit(rows.seq, range(len(rows.token_ids)))
            if rows.seq.cached_len < jobs[index].base_len:
                results[index] = None
        read = [index for index, rows in batch if rows.wants_logits[-1]]
        laws = self._rank(logits, [_law_row(jobs[index], 0) for index in read], num_children)
        for index, children in zip(read, laws, strict=True):
            results[index] = children
        return results

    def extend(self, nodes: Sequence[NodeRow], num_children: int) -> list[Expanded]:
        by_session: dict[SessionRef, list[int]] = {}
        for index, node in enumerate(nodes):
            by_session.setdefault(node.job.session, []).append(index)
        results = [Expanded(ROOT_ROW, NO_CHILDREN)] * len(nodes)
        batch: list[SequenceRows] = []
        order: list[int] = []
        for session, indices in by_session.items():
            cached = self._sessions.get(session)
            if cached is None or not self._reserve(cached.seq, len(indices)):
                continue
            batch.append(self._tree_rows(cached, [nodes[index] for index in indices]))
            order += indices
        if not batch:
            return results
        logits = self._run(batch)
        law_rows = [_law_row(nodes[index].job, nodes[index].depth) for index in order]
        for index, children in zip(order, self._rank(logits, law_rows, num_children), strict=True):
            node = nodes[index]
            row = self._sessions[node.job.session].row_of[node.parent_row, node.token_id]
            results[index] = Expanded(row, children)
        return results

    def _can_read(self, job: DraftJob) -> bool:
        return job.base_len < self._loaded.max_context_len

    def _settle(self, job: DraftJob) -> int:
        """Bring the session's cache as far as computed rows reach; returns how many tokens of the base are unread
        (at least one: the root is run again if need be, for its logits)."""
        cached = self._sessions.get(job.session)
        if cached is None:
            cached = self._sessions[job.session] = _CachedSession(self._cache.new_sequence(), job.token_ids)
        cached.last_draft = self._num_drafts
        seq = cached.seq
        if cached.token_ids is not job.token_ids:  # opened anew
            self._cache.truncate(seq, _common_len(cached.token_ids, job.token_ids, seq.cached_len))
            cached.token_ids = job.token_ids
        else:
            self._cache.commit(seq, self._accepted_rows(cached, job))
        cached.row_of.clear()
        if seq.cached_len >= job.base_len:
            self._cache.truncate(seq, job.base_len - 1)
        return job.base_len - seq.cached_len

    def _accepted_rows(self, cached: _CachedSession, job: DraftJob) -> list[int]:
        """The rows in flight that the tokens after the cached prefix follow."""
        kept: list[int] = []
        for place in range(cached.seq.cached_len, job.base_len - 1):
            row = cached.row_of.get((kept[-1] if kept else ROOT_ROW, job.token_ids[place]))
            if row is None:
                break
            kept.append(row)
        return kept

    def _base_rows(self, job: DraftJob, num_rows: int, *, is_last: bool) -> SequenceRows:
        cached = self._sessions[job.session]
        first = cached.seq.cached_len
        return SequenceRows(
            cached.seq,
            self._to_inputs(job.token_ids[first : first + num_rows]),
            range(first, first + num_rows),
            range(ROOT_ROW, num_rows - 1),
            [False] * (num_rows - 1) + [is_last and not job.is_catching_up],
        )

    def _tree_rows(self, cached: _CachedSession, nodes: Sequence[NodeRow]) -> SequenceRows:
        for row, node in enumerate(nodes, start=cached.seq.num_in_flight):
            cached.row_of[node.parent_row, node.token_id] = row
        return SequenceRows(
            cached.seq,
            self._to_inputs([node.token_id for node in nodes]),
            [node.job.base_len - 1 + node.depth for node in nodes],
            [node.parent_row for node in nodes],
            [True] * len(nodes),
        )

    def _to_inputs(self, token_ids: Sequence[int]) -> list[int]:
        # Ids this model has no embedding for stand in as token 0: that costs a draft, not the engine.
        inputs = [token_id if token_id < self._num_inputs else 0 for token_id in token_ids]
        vocab = self._loaded.draft_vocab
        return inputs if vocab is None else vocab.to_draft[torch.tensor(inputs, dtype=torch.int64)].tolist()

    def _run(self, batch: Sequence[SequenceRows]) -> torch.Tensor:
        self._on_forward(sum(len(rows.token_ids) for rows in batch))
        return self._forward.run(batch)

    @torch.inference_mode()
    def _rank(self, logits: torch.Tensor, rows: Sequence[LawRow], num_children: int) -> list[Children]:
        if not rows:
            return []
        vocab = self._loaded.draft_vocab
        other_id = None if vocab is None else vocab.other_id
        logits = logits[:, : self._num_outputs]
        return rank_children(logits, rows, num_children, to_target=self._to_target, other_id=other_id)

    def _reserve(self, seq: CachedSequence, num_rows: int) -> bool:
        """Whether there is room for `num_rows`, after taking the cache of sessions that are not in this draft."""
        while True:
            try:
                self._cache.reserve(seq, num_rows)
            except OutOfBlocks:
                idle = [s for s, cached in self._sessions.items() if cached.last_draft < self._num_drafts]
                if not idle:
                    _log.warning("the SSM cache is full with the sessions of one draft; raise --kv-tokens")
                    return False
                self.release(min(idle, key=lambda session: self._sessions[session].last_draft))
            else:
                return True


def _law_row(job: DraftJob, depth: int) -> LawRow:
    """The row of a node at `depth` (0 = root): what is drawn after it stands at index base_len + depth."""
    return LawRow(job.sampling, job.base_len + depth)


def _common_len(one: Sequence[int], other: Sequence[int], limit: int) -> int:
    """Length of the common prefix, at most `limit`."""
    limit = min(limit, len(one), len(other))
    return next((place for place in range(limit) if one[place] != other[place]), limit)
