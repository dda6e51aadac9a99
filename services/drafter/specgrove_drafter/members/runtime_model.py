"""A `DraftModel` over the model runtime: one SSM, or several that run as one, with a KV cache shared by all mirrors.

    cached prefix of a session            rows in flight
    [ the whole base, root included ]  ←  r0 (child of the root)  ←  r2 ...
                                          r1 (another child)      ←  r3 (the target's own token, foreseen) ← r4 ...

Between two drafts the tree's rows stay in flight, and `foresee` adds to them. When the next base arrives, its new
tokens are walked down these rows: the accepted path is already computed and is committed rather than run again, so that
usually one row (the target's own token) is all a new base costs. Where that token was foreseen it costs nothing: the
rows stay in flight as they are, and the next tree is found among them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.kv_cache import CachedSequence, KVCache, OutOfBlocks
from specgrove.runtime.loading import LoadedModel
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.computed_rows import CachedSession, NewRows, WantedRow
from specgrove_drafter.members.draft_ids import DraftIds
from specgrove_drafter.members.draft_model import ROOT_ROW, Expanded, NodeRow
from specgrove_drafter.members.feature_feed import FeatureFeed, JointFeed
from specgrove_drafter.members.law import LawRow, prepare_ranking, rank_children
from specgrove_drafter.trees.growth import Children
from specgrove_drafter.trees.mixing import Mixing
from specgrove_drafter.trees.outcomes import Path

_log = logging.getLogger(__name__)
NO_CHILDREN = Children()
# A base that is further behind than this is read over several calls, so that one long context does not hold up the
# drafts of everybody else.
MAX_CATCH_UP_ROWS = 512
# With more rows in flight a session foresees nothing, and its next base is committed, which forgets those off its path.
MAX_ROWS_IN_FLIGHT = 192


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
        feed: FeatureFeed | JointFeed | None = None,
        mixing: Mixing | None = None,
    ) -> None:
        """`mixing` weighs the models of a stack (`specgrove.runtime.loading.stack`); without it they count alike."""
        self._loaded = loaded
        self._num_models = loaded.decoder.num_models
        self._mixing = mixing or Mixing(self._num_models)
        self._cache: KVCache = loaded.new_cache(max_tokens=max_cached_tokens)
        self._forward = PackedForward(loaded, self._cache)
        self._ids = DraftIds.of(loaded, target_vocab_size)
        if loaded.may_compile:
            prepare_ranking()
        self._max_catch_up_rows = max_catch_up_rows
        self._on_forward = on_forward
        self._feed = feed
        self._sessions: dict[SessionRef, CachedSession] = {}
        self._num_drafts = 0

    @property
    def num_cached_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_forwards(self) -> int:
        return self._forward.num_forwards

    def max_depth(self, job: DraftJob) -> int:
        # A child of the root stands at position base_len and is read when it is expanded.
        return max(0, self._loaded.max_context_len - job.base_len)

    def release(self, session: SessionRef) -> None:
        if self._feed is not None:
            self._feed.release(session)
        cached = self._sessions.pop(session, None)
        if cached is not None:
            self._cache.release(cached.seq)

    def start(self, jobs: Sequence[DraftJob], num_children: int, enough: Sequence[int] = ()) -> list[Children | None]:
        self._num_drafts += 1
        rows_left = self._max_catch_up_rows
        results: list[Children | None] = [NO_CHILDREN] * len(jobs)
        batch: list[tuple[int, SequenceRows]] = []
        unread: dict[int, int] = {}
        for index, job in enumerate(jobs):
            known = self._recall_root(job, enough[index] if enough else num_children)
            if known is not None:
                results[index] = known
            elif self._can_read(job):
                unread[index] = self._settle(job)
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
        read = [index for index, rows in batch if rows.wants_logits[-1]]
        logits = self._run([rows for _, rows in batch], [(jobs[index], 0) for index in read])
        for index, rows in batch:
            self._cache.commit(rows.seq, range(len(rows.token_ids)))
            if rows.seq.cached_len < jobs[index].base_len:
                results[index] = None
        laws = self._rank(logits, [self._law_row(jobs[index], 0) for index in read], num_children)
        for index, children in zip(read, laws, strict=True):
            self._remember(jobs[index], ROOT_ROW, num_children, children)
            results[index] = children
        return results

    def extend(self, nodes: Sequence[NodeRow], num_children: int, enough: Sequence[int] = ()) -> list[Expanded]:
        results = [Expanded(ROOT_ROW, NO_CHILDREN)] * len(nodes)
        batch: list[NewRows] = []
        for session, indices in _by_session([node.job for node in nodes]).items():
            cached = self._sessions.get(session)
            root_row = None if cached is None else cached.root_row(nodes[indices[0]].job)
            if cached is None or root_row is None:
                continue
            new = NewRows(cached)
            for index in indices:
                node = nodes[index]
                parent = root_row if node.parent_row == ROOT_ROW else node.parent_row
                wanted = enough[index] if enough else num_children
                known = cached.rows.known_below(parent, node.token_id, wanted)
                if known is None:
                    new.want(index, parent, (node.token_id,), node.job, node.depth)
                else:
                    results[index] = known
            if new.wanted and self._reserve(cached.seq, len(new.token_ids)):
                batch.append(new)
        for row, children in self._laws(batch, num_children):
            results[row.index] = Expanded(row.number, children)
        return results

    def law_after(self, job: DraftJob, path: Path, num_children: int) -> Children | None:
        cached = self._sessions.get(job.session)
        root_row = None if cached is None else cached.root_row(job)
        if cached is None or root_row is None:
            return None
        rows = cached.rows.walk(path, root_row)
        return cached.rows.recall((root_row, *rows)[-1], num_children) if len(rows) == len(path) else None

    def foresee(self, wanted: Sequence[tuple[DraftJob, Path]], num_children: int) -> list[Children | None]:
        results: list[Children | None] = [None] * len(wanted)
        batch: list[NewRows] = []
        for session, indices in _by_session([job for job, _ in wanted]).items():
            cached = self._sessions.get(session)
            root_row = None if cached is None else cached.root_row(wanted[indices[0]][0])
            num_rows = sum(len(wanted[index][1]) for index in indices)
            if cached is None or root_row is None or not self._has_room_ahead(cached.seq, num_rows):
                continue
            new = NewRows(cached)
            for index in indices:
                job, path = wanted[index]
                # The last token is run even where it has a row: its law is what is wanted.
                above = (root_row, *cached.rows.walk(path[:-1], root_row))
                new.want(index, above[-1], path[len(above) - 1 :], job, len(path))
                new.place()
            batch.append(new)
        for row, children in self._laws(batch, num_children):
            results[row.index] = children
        return results

    def _can_read(self, job: DraftJob) -> bool:
        return job.base_len < self._loaded.max_context_len

    def _settle(self, job: DraftJob) -> int:
        """Bring the session's cache as far as computed rows reach; returns how many tokens of the base are unread
        (at least one: the root is run again if need be, for its logits)."""
        cached = self._sessions.get(job.session)
        if cached is None:
            cached = self._sessions[job.session] = CachedSession(self._cache.new_sequence(), job.token_ids)
        cached.last_draft = self._num_drafts
        seq = cached.seq
        if cached.token_ids is not job.token_ids:  # opened anew
            self._cache.truncate(seq, cached.common_len(job))
            cached.token_ids = job.token_ids
        else:
            self._cache.commit(seq, cached.accepted_rows(job))
        cached.rows.clear()
        if seq.cached_len >= job.base_len:
            self._cache.truncate(seq, job.base_len - 1)
        return job.base_len - seq.cached_len

    def _base_rows(self, job: DraftJob, num_rows: int, *, is_last: bool) -> SequenceRows:
        cached = self._sessions[job.session]
        first = cached.seq.cached_len
        return SequenceRows(
            cached.seq,
            self._ids.inputs(job.token_ids[first : first + num_rows]),
            range(first, first + num_rows),
            range(ROOT_ROW, num_rows - 1),
            [False] * (num_rows - 1) + [is_last and not job.is_catching_up],
        )

    def _laws(self, batch: Sequence[NewRows], num_children: int) -> list[tuple[WantedRow, Children]]:
        """Run new rows in one forward (none when there are no rows); the children after each that is wanted."""
        if not batch:
            return []
        wanted = [row for new in batch for row in new.wanted]
        parts = [new.to_sequence_rows(self._ids.inputs(new.token_ids)) for new in batch]
        logits = self._run(parts, [(row.job, row.depth) for row in wanted])
        laws = self._rank(logits, [self._law_row(row.job, row.depth) for row in wanted], num_children)
        for row, children in zip(wanted, laws, strict=True):
            self._remember(row.job, row.number, num_children, children)
        return list(zip(wanted, laws, strict=True))

    def _recall_root(self, job: DraftJob, num_children: int) -> Children | None:
        """The root's children where the base is computed already: nothing is left to be read."""
        cached = self._sessions.get(job.session)
        root_row = None if cached is None else cached.root_row(job)
        if cached is None or root_row is None or cached.seq.num_in_flight > MAX_ROWS_IN_FLIGHT:
            return None
        known = NO_CHILDREN if job.is_catching_up else cached.rows.recall(root_row, num_children)
        if known is not None:
            cached.last_draft = self._num_drafts
        return known

    def _remember(self, job: DraftJob, row: int, num_children: int, children: Children) -> None:
        # Children that are drawn (rule mss) are drawn anew for every tree.
        if job.estimate_kind is not None:
            self._sessions[job.session].rows.remember(row, num_children, children)

    def _has_room_ahead(self, seq: CachedSequence, num_rows: int) -> bool:
        """Whether a guess may take `num_rows` more: never from another session."""
        if seq.num_in_flight + num_rows > MAX_ROWS_IN_FLIGHT:
            return False
        try:
            self._cache.reserve(seq, num_rows)
        except OutOfBlocks:
            return False
        return True

    def _run(self, batch: Sequence[SequenceRows], wanted: Sequence[tuple[DraftJob, int]]) -> torch.Tensor:
        """Logits of the rows that want them: `wanted` names their jobs and depths."""
        self._on_forward(sum(len(rows.token_ids) for rows in batch))
        return self._forward.run(batch, None if self._feed is None else self._feed.before_head(wanted))

    def _rank(self, logits: torch.Tensor, rows: Sequence[LawRow], num_children: int) -> list[Children]:
        if not rows:
            return []
        logits = logits.view(len(rows), self._num_models, -1)[..., : self._ids.num_outputs]
        return rank_children(
            logits,
            rows,
            num_children,
            to_target=self._ids.to_target,
            other_id=self._ids.other_id,
            may_compile=self._loaded.may_compile,
        )

    def _law_row(self, job: DraftJob, depth: int) -> LawRow:
        """The row of a node at `depth` (0 = root): what is drawn after it stands at index base_len + depth."""
        log_weights = self._mixing.log_weights(job.estimate_kind, depth + 1)
        return LawRow(job.sampling, job.base_len + depth, job.rule, log_weights)

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


def _by_session(jobs: Sequence[DraftJob]) -> dict[SessionRef, list[int]]:
    """The places of each session's jobs."""
    places: dict[SessionRef, list[int]] = {}
    for index, job in enumerate(jobs):
        places.setdefault(job.session, []).append(index)
    return places
