"""The verdicts of a whole step at once where kernels can reach them: one transfer in, three launches, one transfer out.

    rows of all trees ──choose_tokens──▶ the target's token after each ──walk_trees──▶ path and own token of each tree

The kernels know rule `coupled` with temperature alone; a generation that wants more of the sampler (top-k, top-p,
min-p, penalties, biases, suppressed stop tokens, another rule) takes the torch path of `verdicts.py`. Both give the
same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specgrove.sampling.rules import Rule
from specgrove.sampling.verification import Verdict
from specgrove.tree import TokenTree
from specgrove_kernels.backend import KernelSet
from specgrove_kernels.staging import stage
from specgrove_verifier.generation import Generation
from specgrove_verifier.scheduler import Scheduled
from specgrove_verifier.verdicts import reach_verdict


def reach_verdicts(
    batch: Sequence[Scheduled],
    logits: torch.Tensor,  # float32 [W, V], the rows that choose tokens, in packed order
    kernels: KernelSet | None,
) -> list[Verdict | None]:
    """The verdict on each of `batch`; None where the chain does not reach the last committed token."""
    asked = [scheduled for scheduled in batch if scheduled.reaches_end]
    trees = [scheduled.tree or TokenTree.root_only(scheduled.generation.tokens[-1]) for scheduled in asked]
    joint: Sequence[Verdict | None] = [None] * len(asked)
    if kernels is not None and any(_is_plain(scheduled.generation) for scheduled in asked):
        joint = _by_kernels([scheduled.generation for scheduled in asked], trees, logits, kernels)
    verdicts: list[Verdict] = []
    first = 0
    for scheduled, tree, verdict in zip(asked, trees, joint, strict=True):
        rows = logits[first : first + tree.num_nodes]
        verdicts.append(verdict or reach_verdict(scheduled.generation, tree, scheduled.laws, rows))
        first += tree.num_nodes
    reached = iter(verdicts)
    return [next(reached) if scheduled.reaches_end else None for scheduled in batch]


def _is_plain(generation: Generation) -> bool:
    """Whether the kernels' sampler is this generation's."""
    sampling = generation.request.sampling
    is_suppressing = generation.checker.stop_token_ids and len(generation.tokens) < generation.suppressed_below
    has_filters = bool(sampling.top_k or sampling.top_p < 1.0 or sampling.min_p)
    is_raw = generation.adjuster is None and not is_suppressing
    return is_raw and (sampling.is_greedy or (generation.rule == Rule.COUPLED and not has_filters))


def _by_kernels(
    generations: Sequence[Generation], trees: Sequence[TokenTree], logits: torch.Tensor, kernels: KernelSet
) -> list[Verdict | None]:
    """Rows of generations that are not plain are walked greedily with the others, and their verdicts thrown away."""
    is_plain = [_is_plain(generation) for generation in generations]
    sizes = [tree.num_nodes for tree in trees]
    samplings = [generation.request.sampling for generation in generations]
    temperatures = [s.temperature if plain else 0.0 for s, plain in zip(samplings, is_plain, strict=True)]
    seeds = np.array([sampling.seed for sampling in samplings], dtype=np.uint64).view(np.int64)
    places = [len(g.tokens) + depth for g, tree in zip(generations, trees, strict=True) for depth in tree.depths]
    arrays: list[np.ndarray] = [
        np.repeat(np.array(temperatures, dtype=np.float32), sizes),
        np.repeat(seeds, sizes),
        np.array(places, dtype=np.int64),
        np.array([token_id for tree in trees for token_id in tree.token_ids], dtype=np.int64),
        np.array([parent for tree in trees for parent in tree.parents], dtype=np.int32),
        np.cumsum([0, *sizes], dtype=np.int32),
    ]
    depth = max(1, *(tree.max_depth for tree in trees))
    row_temperatures, row_seeds, positions, token_ids, parents, starts = stage(arrays, logits.device)
    choices = kernels.choose_tokens(logits, row_temperatures, row_seeds, positions)
    walks = kernels.walk_trees(choices, token_ids, parents, starts, max_depth=depth, max_nodes=max(sizes))
    columns = (walks.num_accepted[:, None], walks.is_bonus[:, None], walks.own_token_ids[:, None], walks.accepted_nodes)
    rows = torch.cat([column.long() for column in columns], dim=1).tolist()
    return [
        Verdict(tuple(nodes[:count]), own, bool(bonus)) if plain else None
        for plain, (count, bonus, own, *nodes) in zip(is_plain, rows, strict=True)
    ]
