"""The token tree: what a drafter proposes and a verifier checks in one pass.

    committed ... "the" ── "cat" ─┬─ "sat" ── "on"        node   0     1     2     3     4     5
                 (root)           └─ "is"                 token  the   cat   sat   on    is    dog
                        └─ "dog"                          parent -1    0     1     2     1     0
                                                          depth  0     1     2     3     2     1

Arrays are parents-first (`parents[i] < i`), node 0 is the root: the last committed token. A node *is* its path from
the root: two children of one parent never carry the same token (SpecInfer, definition 3.1 and 3.2; merging trees is
the union of their paths).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from specgrove.errors import InvalidInput

ROOT = 0
NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class TokenTree:
    """An immutable token tree of `num_nodes` nodes, the root included.

    `members[i]` is a bitmask of the ensemble members that proposed node i (0 where nobody says so, as at the root).
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    members: tuple[int, ...] = ()
    depths: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.members:
            object.__setattr__(self, "members", (0,) * len(self.token_ids))
        if not self.token_ids or len(self.token_ids) != len(self.parents) or len(self.parents) != len(self.members):
            raise InvalidInput("a token tree needs a root and equally long token_ids, parents and members")
        if self.parents[ROOT] != NO_PARENT:
            raise InvalidInput(f"node 0 is the root: its parent is {NO_PARENT}, got {self.parents[ROOT]}")
        depths = [0]
        seen: set[tuple[int, int]] = set()
        for node in range(1, len(self.token_ids)):
            parent = self.parents[node]
            if not 0 <= parent < node:
                raise InvalidInput(f"parents come first: node {node} names parent {parent}")
            if (parent, self.token_ids[node]) in seen:
                raise InvalidInput(f"node {node} repeats token {self.token_ids[node]} under parent {parent}")
            seen.add((parent, self.token_ids[node]))
            depths.append(depths[parent] + 1)
        object.__setattr__(self, "depths", tuple(depths))

    @classmethod
    def root_only(cls, token_id: int) -> TokenTree:
        return cls((token_id,), (NO_PARENT,))

    @classmethod
    def from_paths(cls, root_token_id: int, paths: Iterable[Sequence[int]]) -> TokenTree:
        """The union of `paths` (token ids below the root), in order of first appearance."""
        builder = TreeBuilder(root_token_id)
        for path in paths:
            node = ROOT
            for token_id in path:
                node = builder.add(node, token_id)
        return builder.build()

    @property
    def num_nodes(self) -> int:
        return len(self.token_ids)

    @property
    def num_draft_nodes(self) -> int:
        """Nodes without the root: the draft tokens to verify."""
        return len(self.token_ids) - 1

    @property
    def max_depth(self) -> int:
        return max(self.depths)

    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of each node, in node order."""
        rows: list[list[int]] = [[] for _ in self.token_ids]
        for node in range(1, self.num_nodes):
            rows[self.parents[node]].append(node)
        return tuple(tuple(row) for row in rows)

    def node_path(self, node: int) -> tuple[int, ...]:
        """Node numbers from the first node below the root down to `node` (empty for the root)."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def token_path(self, node: int) -> tuple[int, ...]:
        """Token ids from below the root down to `node`: the identity of the node."""
        return tuple(self.token_ids[step] for step in self.node_path(node))

    def paths(self) -> frozenset[tuple[int, ...]]:
        """The identities of all nodes; trees with equal `paths` and root are the same tree."""
        return frozenset(self.token_path(node) for node in range(self.num_nodes))

    def ancestor_rows(self) -> tuple[tuple[int, ...], ...]:
        """For each node the nodes it attends to: its ancestors and itself, in ascending order."""
        rows: list[tuple[int, ...]] = [(ROOT,)]
        for node in range(1, self.num_nodes):
            rows.append((*rows[self.parents[node]], node))
        return tuple(rows)

    def truncated(self, *, max_draft_nodes: int, max_depth: int) -> TokenTree:
        """The tree without nodes past `max_draft_nodes` (node order) and below `max_depth`."""
        kept: dict[int, int] = {ROOT: ROOT}
        builder = TreeBuilder(self.token_ids[ROOT])
        for node in range(1, self.num_nodes):
            if builder.num_nodes > max_draft_nodes:
                break
            if self.depths[node] <= max_depth and self.parents[node] in kept:
                kept[node] = builder.add(kept[self.parents[node]], self.token_ids[node], self.members[node])
        return builder.build()


class TreeBuilder:
    """Grows a token tree; adding a path that is already there returns the node it has."""

    def __init__(self, root_token_id: int) -> None:
        self.token_ids: list[int] = [root_token_id]
        self.parents: list[int] = [NO_PARENT]
        self.members: list[int] = [0]
        self.depths: list[int] = [0]
        self._node_of: dict[tuple[int, int], int] = {}

    @property
    def num_nodes(self) -> int:
        return len(self.token_ids)

    def find(self, parent: int, token_id: int) -> int | None:
        return self._node_of.get((parent, token_id))

    def add(self, parent: int, token_id: int, members: int = 0) -> int:
        """The node with `token_id` under `parent`, made if it is not there; `members` are or-ed into it."""
        node = self._node_of.get((parent, token_id))
        if node is None:
            node = len(self.token_ids)
            self._node_of[(parent, token_id)] = node
            self.token_ids.append(token_id)
            self.parents.append(parent)
            self.members.append(0)
            self.depths.append(self.depths[parent] + 1)
        self.members[node] |= members
        return node

    def build(self) -> TokenTree:
        return TokenTree(tuple(self.token_ids), tuple(self.parents), tuple(self.members))


def merge(trees: Sequence[TokenTree]) -> TokenTree:
    """The union of the paths of `trees` (SpecInfer, definition 3.2). The roots must be the same token.

    The trees take turns, node by node: each tree has its best nodes first, and so has the union when it is cut short.
    """
    if not trees:
        raise InvalidInput("nothing to merge: pass at least one tree")
    if len(roots := {tree.token_ids[ROOT] for tree in trees}) > 1:
        raise InvalidInput(f"trees with roots {sorted(roots)} do not merge")
    builder = TreeBuilder(trees[0].token_ids[ROOT])
    places = [[ROOT] for _ in trees]  # the builder's node of each tree's node
    for node in range(1, max(tree.num_nodes for tree in trees)):
        for tree, place in zip(trees, places, strict=True):
            if node < tree.num_nodes:
                place.append(builder.add(place[tree.parents[node]], tree.token_ids[node], tree.members[node]))
    return builder.build()


@dataclass(frozen=True, slots=True)
class ExpansionConfig:
    """A static tree shape <k1,...,km>: every node at depth i has k_(i+1) children (SpecInfer, section 3)."""

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.widths or any(width < 1 for width in self.widths):
            raise InvalidInput("an expansion config is one or more positive widths, as in 1,1,3,1,1,1,1,1")

    @classmethod
    def parse(cls, text: str) -> ExpansionConfig:
        """Read `1,1,3,1` (angle brackets and blanks allowed)."""
        try:
            return cls(tuple(int(part) for part in text.strip().strip("<>").split(",")))
        except ValueError as error:
            raise InvalidInput(f"cannot read expansion config {text!r}; write it as 1,1,3,1,1,1,1,1") from error

    @property
    def max_depth(self) -> int:
        return len(self.widths)

    @property
    def num_draft_nodes(self) -> int:
        total, level = 0, 1
        for width in self.widths:
            level *= width
            total += level
        return total

    def __str__(self) -> str:
        return "<" + ",".join(map(str, self.widths)) + ">"


def is_chain(tree: TokenTree) -> bool:
    """Whether the tree is one path, as in sequence speculation."""
    return all(child == parent + 1 for parent, child in pairwise(tree.parents))
