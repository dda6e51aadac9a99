"""What one SSM has computed for one session below its cached prefix: rows in flight by path, and the laws found there.

    cached prefix ── r0 "cat" ─┬─ r2 "sat"        row_of   (-1, cat): 0, (-1, dog): 1, (0, sat): 2, (0, is): 3
                  └─ r1 "dog"  └─ r3 "is"         laws     after -1, 0, 2: ranked children

A new base that follows these rows needs no forward for them, and where the law after its last token is known, none at
all. That is how work done ahead is used: not as a tree kept in stock, but as rows and laws that the next draft finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specgrove.runtime.forward import SequenceRows
from specgrove.runtime.kv_cache import CachedSequence
from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.members.draft_model import ROOT_ROW, Expanded
from specgrove_drafter.trees.growth import Children


@dataclass(slots=True, eq=False)
class ComputedRows:
    """Rows are numbered as the KV cache numbers them; ROOT_ROW stands for the end of the cached prefix."""

    _row_of: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent row, token) -> row
    _laws: dict[int, tuple[int, Children]] = field(default_factory=dict)  # row -> (children asked for, children)

    def clear(self) -> None:
        self._row_of.clear()
        self._laws.clear()

    def place(self, parent_row: int, token_id: int, row: int) -> None:
        """Note a new row; where its path has one already that one stays, and what hangs under it."""
        self._row_of.setdefault((parent_row, token_id), row)

    def row_below(self, parent_row: int, token_id: int) -> int | None:
        return self._row_of.get((parent_row, token_id))

    def walk(self, token_ids: Sequence[int], start_row: int = ROOT_ROW) -> list[int]:
        """The rows that `token_ids` follow from `start_row` on, as far as there are any."""
        rows: list[int] = []
        for token_id in token_ids:
            row = self._row_of.get((rows[-1] if rows else start_row, token_id))
            if row is None:
                break
            rows.append(row)
        return rows

    def end_of(self, token_ids: Sequence[int]) -> int | None:
        """The row of the last of `token_ids` after the cached prefix; None when not all of them are computed."""
        rows = self.walk(token_ids)
        if len(rows) < len(token_ids):
            return None
        return rows[-1] if rows else ROOT_ROW

    def remember(self, row: int, num_asked: int, children: Children) -> None:
        self._laws[row] = (num_asked, children)

    def recall(self, row: int, num_children: int) -> Children | None:
        """The children after `row`, when at least as many were asked for as are wanted now."""
        num_asked, children = self._laws.get(row, (0, None))
        return children if num_asked >= num_children else None

    def known_below(self, parent_row: int, token_id: int, num_children: int) -> Expanded | None:
        """The node `token_id` under `parent_row`, where it was expanded before."""
        row = self._row_of.get((parent_row, token_id))
        children = None if row is None else self.recall(row, num_children)
        return None if row is None or children is None else Expanded(row, children)


@dataclass(slots=True, eq=False)
class CachedSession:
    """What one SSM holds of one session: a cached prefix and the rows in flight below it."""

    seq: CachedSequence
    token_ids: Sequence[int]  # the mirror's list at the last draft
    rows: ComputedRows = field(default_factory=ComputedRows)
    last_draft: int = 0

    def root_row(self, job: DraftJob) -> int | None:
        """The row of the root of `job`'s base; None where the base is not computed to its end."""
        if self.token_ids is not job.token_ids:
            return None
        return self.rows.end_of(job.token_ids[self.seq.cached_len : job.base_len])

    def accepted_rows(self, job: DraftJob) -> list[int]:
        """The rows in flight that the base follows, its root left out."""
        return self.rows.walk(job.token_ids[self.seq.cached_len : job.base_len - 1])

    def common_len(self, job: DraftJob) -> int:
        """How much of the cached prefix a base that was opened anew shares."""
        limit = min(self.seq.cached_len, len(self.token_ids), len(job.token_ids))
        return next((at for at in range(limit) if self.token_ids[at] != job.token_ids[at]), limit)


@dataclass(frozen=True, slots=True)
class WantedRow:
    """A row whose law is wanted: `index` is the caller's number for it, `number` the row's, `place` the new row's among
    those to be run. The two name different rows where a path is run again for its law alone."""

    index: int
    job: DraftJob
    depth: int
    number: int
    place: int


@dataclass(slots=True, eq=False)
class NewRows:
    """Rows to be run for one session, appended to those in flight."""

    cached: CachedSession
    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    wanted: list[WantedRow] = field(default_factory=list)
    _num_placed: int = 0

    def want(self, index: int, parent_row: int, token_ids: Sequence[int], job: DraftJob, depth: int) -> None:
        """A chain of `token_ids` under `parent_row`; the law after the last of them, at `depth`, is wanted."""
        first = self.cached.seq.num_in_flight + len(self.token_ids)
        above = (parent_row, *range(first, first + len(token_ids) - 1))
        top = job.base_len + depth - len(token_ids)
        self.token_ids += token_ids
        self.positions += range(top, top + len(token_ids))
        self.parents += above
        last = len(self.token_ids) - 1
        known = self.cached.rows.row_below(self.parents[last], self.token_ids[last])
        number = self.cached.seq.num_in_flight + last if known is None else known
        self.wanted.append(WantedRow(index, job, depth, number, last))

    def place(self) -> None:
        """Let paths be found down these rows; for callers that are sure to run them."""
        first = self.cached.seq.num_in_flight
        for at in range(self._num_placed, len(self.token_ids)):
            self.cached.rows.place(self.parents[at], self.token_ids[at], first + at)
        self._num_placed = len(self.token_ids)

    def to_sequence_rows(self, inputs: Sequence[int]) -> SequenceRows:
        """The rows for a packed forward, `inputs` being their tokens in the SSM's own vocabulary."""
        self.place()
        ends = {row.place for row in self.wanted}
        wants = [at in ends for at in range(len(self.token_ids))]
        return SequenceRows(self.cached.seq, inputs, self.positions, self.parents, wants)
