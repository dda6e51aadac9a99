"""What one member proposes, and how the proposals of an ensemble become the one tree that fits the budget.

    member 1:  a 0.6 ── b 0.4          merged by path, the larger estimate counts         budget 3:
               c 0.2                   a 0.6 ─┬─ b 0.5                                     a ─┬─ b
    member 2:  a 0.5 ─┬─ b 0.5                └─ d 0.1                                        └─ (d: dropped)
                      └─ d 0.1         c 0.2                                               c

The estimate of a node is the probability that the target takes the whole path down to it, so it never exceeds its
parent's, and the best N nodes always form a tree. The larger of two estimates, not their noisy-or: members read the
same text and are right together, so adding their evidence would count it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specgrove.tree import ROOT, TokenTree, TreeBuilder
from specgrove_drafter.jobs import Budget

BELOW_ROOT = -1

# From (depth, a member's conditional log probability) to the one that counts: see `calibration`.
Scale = Callable[[int, float], float]


def as_estimated(depth: int, log_prob: float) -> float:
    """The scale that takes a member at its word."""
    return log_prob


@dataclass(frozen=True, slots=True)
class ProposedLaw:
    """The sparse law below `parent` (a node of the proposal or `BELOW_ROOT`), and the nodes drawn from it in order."""

    parent: int
    token_ids: tuple[int, ...]
    probs: tuple[float, ...]  # float32 values
    draws: tuple[int, ...]


@dataclass(slots=True)
class Proposal:
    """Nodes below the root, parents first: `parents[i]` is an entry of this proposal or `BELOW_ROOT`."""

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    log_path_probs: list[float] = field(default_factory=list)  # estimates, natural logarithm
    raw_log_probs: list[float] = field(default_factory=list)  # conditional, before `scale`
    depths: list[int] = field(default_factory=list)  # 1 = child of the root
    scale: Scale = as_estimated
    laws: list[ProposedLaw] = field(default_factory=list)  # in the order drawn; none where children are not drawn
    shares: list[tuple[float, ...]] = field(default_factory=list)  # by node and model; empty entries for one model

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, parent: int, token_id: int, log_prob: float, shares: tuple[float, ...] = ()) -> int:
        """A new node under `parent` with conditional log probability `log_prob` (clamped to at most 0); its number."""
        above, depth = (0.0, 1) if parent == BELOW_ROOT else (self.log_path_probs[parent], self.depths[parent] + 1)
        self.token_ids.append(token_id)
        self.parents.append(parent)
        self.raw_log_probs.append(log_prob)
        self.depths.append(depth)
        self.shares.append(shares)
        self.log_path_probs.append(above + min(self.scale(depth, log_prob), 0.0))
        return len(self.token_ids) - 1

    def depth_below(self, parent: int) -> int:
        """The depth of the children of `parent`."""
        return 1 if parent == BELOW_ROOT else self.depths[parent] + 1

    def log_prob(self, node: int) -> float:
        """The conditional estimate of `node`, after `scale`."""
        parent = self.parents[node]
        return self.log_path_probs[node] - (0.0 if parent == BELOW_ROOT else self.log_path_probs[parent])

    def sources(self, node: int) -> int:
        """Which of the models that speak as one proposed `node`: bit k for model k; 1 where there is only one.

        A model counts where it gives the node at least half of what all of them give it together.
        """
        shares = self.shares[node]
        if not shares:
            return 1
        mean = sum(shares) / len(shares)
        return sum(1 << model for model, share in enumerate(shares) if share >= mean / 2.0)

    def scaled(self, scale: Scale) -> Proposal:
        """The same nodes with their estimates by `scale`."""
        other = Proposal(scale=scale)
        for parent, token_id, log_prob in zip(self.parents, self.token_ids, self.raw_log_probs, strict=True):
            other.add(parent, token_id, log_prob)
        return other


def steps_taken(proposal: Proposal, token_ids: Sequence[int]) -> Iterator[tuple[list[int], int | None]]:
    """Down the path of `token_ids`: the nodes below each node reached (there are some), and the one that was taken."""
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(proposal.parents):
        below.setdefault(parent, []).append(node)
    at = BELOW_ROOT
    for token_id in token_ids:
        children = below.get(at)
        if not children:
            return
        taken = next((node for node in children if proposal.token_ids[node] == token_id), None)
        yield children, taken
        if taken is None:
            return
        at = taken


def join(proposals: Sequence[Proposal]) -> Proposal:
    """All nodes of `proposals` in one; a path that several propose is there once, with the larger estimate."""
    joined, node_of = Proposal(), dict[tuple[int, int], int]()
    for proposal in proposals:
        place: list[int] = []
        for token_id, parent, score in zip(proposal.token_ids, proposal.parents, proposal.log_path_probs, strict=True):
            above = BELOW_ROOT if parent == BELOW_ROOT else place[parent]
            node = node_of.get((above, token_id))
            if node is None:
                node = node_of[above, token_id] = joined.add(above, token_id, 0.0)
                joined.log_path_probs[node] = score
            joined.log_path_probs[node] = max(joined.log_path_probs[node], score)
            place.append(node)
    return joined


def select_tree(root_token_id: int, proposals: Sequence[tuple[int, Proposal]], budget: Budget) -> TokenTree:
    """The best tree within `budget` from (member's first bit as a mask, proposal) pairs.

    Nodes come in order of falling estimate, so that a verifier that cuts the tree short keeps its best part.
    """
    node_of: dict[tuple[int, int], int] = {}  # by parent and token
    paths: list[tuple[int, int]] = [(ROOT, root_token_id)]
    scores, depths = [0.0], [0]
    entries: list[list[tuple[int, int]]] = [[]]  # of which proposals a node is one
    for number, (_, proposal) in enumerate(proposals):
        place: list[int] = []
        rows = zip(proposal.token_ids, proposal.parents, proposal.log_path_probs, proposal.depths, strict=True)
        for entry, (token_id, parent, score, depth) in enumerate(rows):
            path = (ROOT if parent == BELOW_ROOT else place[parent], token_id)
            node = node_of.get(path)
            if node is None:
                node = node_of[path] = len(paths)
                paths.append(path)
                scores.append(score)
                depths.append(depth)
                entries.append([(number, entry)])
            else:
                scores[node] = max(scores[node], score)
                entries[node].append((number, entry))
            place.append(node)
    in_reach = [node for node in range(1, len(paths)) if depths[node] <= budget.max_depth]
    # Equal scores keep the order of insertion, in which parents come first.
    chosen = sorted(in_reach, key=lambda node: -scores[node])[: budget.max_nodes]
    tree = TreeBuilder(root_token_id)
    new_number = {ROOT: ROOT}
    for node in chosen:
        parent, token_id = paths[node]
        mask = 0  # most nodes are not chosen: only these are asked who proposed them
        for number, entry in entries[node]:
            member_bit, proposal = proposals[number]
            mask |= member_bit * proposal.sources(entry)
        new_number[node] = tree.add(new_number[parent], token_id, mask)
    return tree.build()
