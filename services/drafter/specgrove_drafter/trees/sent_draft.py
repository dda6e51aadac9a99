"""A draft that is out for verification: the tree, and what each member thought of it."""

from __future__ import annotations

from dataclasses import dataclass

from specgrove.tree import ROOT, TokenTree
from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.trees.proposal import BELOW_ROOT, Proposal, join


@dataclass(frozen=True, slots=True, eq=False)
class SentDraft:
    """The tree sent for `job`, made of `proposals`: pairs of a member's bit number and what it proposed."""

    job: DraftJob
    tree: TokenTree
    proposals: tuple[tuple[int, Proposal], ...] = ()

    def log_path_probs(self) -> list[float]:
        """For each node of the tree the largest estimate that the target takes the path down to it (root: 0)."""
        joined = join([proposal for _, proposal in self.proposals])
        entry_of = {
            (parent, token_id): entry
            for entry, (parent, token_id) in enumerate(zip(joined.parents, joined.token_ids, strict=True))
        }
        entries = {ROOT: BELOW_ROOT}
        scores = [0.0]
        for node in range(1, self.tree.num_nodes):
            above = entries.get(self.tree.parents[node])
            entry = None if above is None else entry_of.get((above, self.tree.token_ids[node]))
            if entry is not None:
                entries[node] = entry
            scores.append(float("-inf") if entry is None else joined.log_path_probs[entry])
        return scores


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedDraft:
    """What was committed after a draft's base: the evidence of how right its proposals were."""

    draft: SentDraft
    token_ids: tuple[int, ...]
