"""A draft as it came from a drafter, before anybody has compared it with the committed tokens."""

from __future__ import annotations

from dataclasses import dataclass

from specgrove.errors import InvalidInput
from specgrove.tree import NO_PARENT, TokenTree


@dataclass(frozen=True, slots=True)
class ChildLaw:
    """One member's draws of children below one node (rule `mss`).

    `token_ids` and `probs` are the sparse law they were drawn from, `draws` the child nodes in the order drawn, without
    replacement. Two members that drew the same child name the same node, each in its own law.
    """

    parent: int
    token_ids: tuple[int, ...]
    probs: tuple[float, ...]
    draws: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A token tree without its root, under a named base. Node i + 1 of the tree is entry i of the arrays."""

    session_key: int
    base_len: int
    base_hash: int
    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    members: tuple[int, ...] = ()
    draft_s: float = 0.0
    laws: tuple[ChildLaw, ...] = ()

    def to_tree(self, root_token_id: int, *, vocab_size: int, max_nodes: int, max_depth: int) -> TokenTree:
        """The tree under `root_token_id`.

        Raises `InvalidInput` with field `max_nodes` or `max_depth` when the draft is over its budget (the size is
        checked before anything is built) and another field when it is malformed.
        """
        num_nodes = len(self.token_ids)
        if num_nodes > max_nodes:
            raise InvalidInput(f"{num_nodes} draft nodes, the budget is {max_nodes}", field="max_nodes")
        if len(self.parents) != num_nodes or len(self.members) not in (0, num_nodes):
            raise InvalidInput("token_ids, parents and members differ in length", field="parents")
        for token_id in self.token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidInput(f"token id {token_id} is outside the vocabulary of {vocab_size}", field="token_ids")
        tree = TokenTree(
            (root_token_id, *self.token_ids),
            (NO_PARENT, *self.parents),
            (0, *self.members) if self.members else (),
        )
        if tree.max_depth > max_depth:
            raise InvalidInput(f"depth {tree.max_depth}, the budget is {max_depth}", field="max_depth")
        return tree
