"""The laws that the children of a drafted tree were drawn from (rule `mss`): checked, and merged without a bias.

    laws, in the order they were drawn       cut to 4 draws: whole laws, from the end, by their number of draws
    root  ── draws a, b                      kept     2
    a     ── draws c, d                      kept     4
    b     ── draws e                         dropped  5

What may be dropped, and when. A law's draws are exact only if nothing that led to their being there depends on what
they turned out to be. So the verifier never keeps the likeliest of them, never counts distinct nodes (two laws that
drew the same child have fewer of them) and never lets one drafter's draws decide how many of another's are kept: each
tree has its share of the budget in advance, and what does not fit is cut in the order in which it was drawn.
Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from specgrove.draft import ChildLaw
from specgrove.errors import InvalidInput
from specgrove.tree import ROOT, TokenTree, TreeBuilder

MAX_LAW_LEN = 64  # tokens of a sparse law
_SUM_TOLERANCE = 1e-3

LawfulTree = tuple[TokenTree, tuple[ChildLaw, ...]]


def num_draws(laws: Sequence[ChildLaw]) -> int:
    return sum(len(law.draws) for law in laws)


def check_laws(tree: TokenTree, laws: Sequence[ChildLaw], *, vocab_size: int, max_draws: int) -> tuple[ChildLaw, ...]:
    """`laws` with probabilities that sum to 1, once it is sure that every draft node of `tree` is a draw of one.

    Raises `InvalidInput` with field `max_nodes` when there are more draws than `max_draws`, and with field `laws`
    when they do not fit the tree.
    """
    if num_draws(laws) > max_draws:
        raise InvalidInput(f"{num_draws(laws)} draws, the budget is {max_draws}", field="max_nodes")
    drawn = {ROOT}
    for law in laws:
        if law.parent not in drawn:
            raise _malformed(f"a law hangs below node {law.parent}, which no law before it has drawn")
        _check_law(tree, law, vocab_size)
        drawn.update(law.draws)
    if len(drawn) != tree.num_nodes:
        raise _malformed(f"{tree.num_nodes - len(drawn)} nodes were drawn from no law")
    return tuple(replace(law, probs=_normalised(law.probs)) for law in laws)


def _check_law(tree: TokenTree, law: ChildLaw, vocab_size: int) -> None:
    if not 1 <= len(law.token_ids) <= MAX_LAW_LEN or len(law.token_ids) != len(law.probs):
        raise _malformed(f"a law names 1 to {MAX_LAW_LEN} tokens and as many probabilities")
    if len(set(law.token_ids)) != len(law.token_ids):
        raise _malformed("a law names a token twice")
    if not all(0 <= token_id < vocab_size for token_id in law.token_ids):
        raise _malformed(f"a law names a token outside the vocabulary of {vocab_size}")
    if not all(math.isfinite(prob) and prob > 0.0 for prob in law.probs) or abs(sum(law.probs) - 1.0) > _SUM_TOLERANCE:
        raise _malformed("the probabilities of a law are positive and sum to 1")
    if not law.draws or len(set(law.draws)) != len(law.draws):
        raise _malformed("a law has at least one draw, and none twice")
    named = set(law.token_ids)
    for node in law.draws:
        if not 0 < node < tree.num_nodes or tree.parents[node] != law.parent or tree.token_ids[node] not in named:
            raise _malformed(f"draw {node} is no child of node {law.parent} with a token of its law")


def _normalised(probs: Sequence[float]) -> tuple[float, ...]:
    total = sum(probs)
    return tuple(prob / total for prob in probs)


def _malformed(problem: str) -> InvalidInput:
    return InvalidInput(problem, field="laws")


def merge_lawful(parts: Sequence[LawfulTree], max_draws: int) -> LawfulTree:
    """The union of the paths of `parts` (each checked) with all their laws, cut to `max_draws` in all.

    Each part is cut to its own share first; a single part keeps the whole budget. Laws below one node keep the order
    of the parts.
    """
    if len(parts) == 1 and num_draws(parts[0][1]) <= max_draws:
        return parts[0]
    builder = TreeBuilder(parts[0][0].token_ids[ROOT])
    merged: list[ChildLaw] = []
    for (tree, laws), share in zip(parts, shares(max_draws, len(parts)), strict=True):
        place = {ROOT: ROOT}
        for law in laws[: _num_kept(laws, share)]:
            for node in law.draws:
                place[node] = builder.add(place[law.parent], tree.token_ids[node], tree.members[node])
            merged.append(replace(law, parent=place[law.parent], draws=tuple(place[node] for node in law.draws)))
    return builder.build(), tuple(merged)


def shares(budget: int, num_parts: int) -> list[int]:
    """`budget` in `num_parts` near-equal parts, the larger ones first."""
    least, num_larger = divmod(budget, num_parts)
    return [least + (part < num_larger) for part in range(num_parts)]


def _num_kept(laws: Sequence[ChildLaw], max_draws: int) -> int:
    """How many of the first laws have at most `max_draws` draws together."""
    total = 0
    for number, law in enumerate(laws):
        total += len(law.draws)
        if total > max_draws:
            return number
    return len(laws)
