"""Every outcome of multi-step speculative sampling at one node with its exact probability: no sampling, no tolerance.

The draws are enumerated with their probabilities; for each, the trials of the real code give the chance that each draw
is accepted and the law of the own token when none is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from specgrove.draft import ChildLaw
from specgrove.sampling.mss import ChildTrials
from specgrove.tree import NO_PARENT, ROOT, TreeBuilder

Law = tuple[float, ...]  # over the tokens 0, 1, ...; 0 where the law does not reach
Draws = tuple[int, ...]  # token ids, in the order drawn
Outcomes = Iterable[tuple[tuple[Draws, ...], float]]  # draws of each law, and how probable they are together


def without_replacement(law: Law, count: int) -> Iterator[tuple[Draws, float]]:
    """Every ordered draw of `count` tokens, and its probability."""
    if count == 0:
        yield (), 1.0
        return
    total = sum(law)
    for token_id, prob in enumerate(law):
        if prob > 0:
            rest = tuple(0.0 if other == token_id else value for other, value in enumerate(law))
            for later, later_prob in without_replacement(rest, count - 1):
                yield (token_id, *later), prob / total * later_prob


def independent(one: Iterator[tuple[Draws, float]], *others: Iterator[tuple[Draws, float]]) -> Outcomes:
    """The draws of several laws side by side."""
    if not others:
        return [((draws,), prob) for draws, prob in one]
    rest = list(independent(*others))
    return [((draws, *more), prob * more_prob) for draws, prob in one for more, more_prob in rest]


def node_with(laws: Sequence[Law], draws: Sequence[Draws]) -> tuple[list[ChildLaw], list[int]]:
    """The laws below a root whose children are `draws` (a token that two laws drew is one node), and the token ids."""
    builder = TreeBuilder(root_token_id=0)
    child_laws = []
    for law, tokens in zip(laws, draws, strict=True):
        support = [token_id for token_id, prob in enumerate(law) if prob > 0]
        nodes = tuple(builder.add(ROOT, token_id) for token_id in tokens)
        child_laws.append(ChildLaw(ROOT, tuple(support), tuple(law[token_id] for token_id in support), nodes))
    tree = builder.build()
    assert set(tree.parents) <= {NO_PARENT, ROOT}
    return child_laws, list(tree.token_ids)


def output_law(
    target: Law,
    outcomes: Outcomes,
    propose: Callable[[Sequence[Draws]], tuple[Sequence[ChildLaw], Sequence[int]]],
) -> tuple[torch.Tensor, float]:
    """The law of the token that comes out at a node (float64 [V]), and the chance that a child is accepted.

    `propose` turns draws into what the verifier is told.
    """
    law = torch.zeros(len(target), dtype=torch.float64)
    accepted = 0.0
    for draws, prob in outcomes:
        laws, token_ids = propose(draws)
        trials = ChildTrials(torch.tensor(target, dtype=torch.float64), laws, token_ids)
        still_here = prob
        for trial in trials:
            law[token_ids[trial.node]] += still_here * trial.acceptance
            accepted += still_here * trial.acceptance
            still_here *= 1.0 - trial.acceptance
        law += still_here * trials.residual
    return law, accepted


def worst_error(law: torch.Tensor, target: Law) -> float:
    return float((law - torch.tensor(target, dtype=torch.float64)).abs().max())
