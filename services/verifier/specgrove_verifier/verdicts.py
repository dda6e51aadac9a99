"""What the target makes of one generation's rows: the path it accepts and the token it adds of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specgrove.draft import ChildLaw
from specgrove.sampling.mss import MssNoise, verify_mss
from specgrove.sampling.rules import needs_child_laws
from specgrove.sampling.target_choice import choose_tokens, suppress, target_probs
from specgrove.sampling.verification import Verdict, verify_tree
from specgrove.tree import TokenTree
from specgrove_verifier.generation import Generation


def reach_verdict(generation: Generation, tree: TokenTree, laws: Sequence[ChildLaw], logits: torch.Tensor) -> Verdict:
    """The verdict on `tree` (the bare root in plain decoding) by the generation's rule.

    `laws` are what the nodes were drawn from, for rule `mss`; `logits` float32 [num_nodes, V], one row a node.
    """
    sampling = generation.request.sampling
    if generation.adjuster is not None:
        logits = generation.adjuster.adjust(logits, tree)
    length = len(generation.tokens)
    positions = [length + depth for depth in tree.depths]
    logits = suppress(logits, positions, sorted(generation.checker.stop_token_ids), generation.suppressed_below)
    if not needs_child_laws(generation.rule, sampling.temperature):
        return verify_tree(tree, choose_tokens(logits, sampling, positions, generation.noise))

    def law_after(node: int) -> torch.Tensor:
        return target_probs(logits[node : node + 1], sampling)[0]

    return verify_mss(tree, laws, length, law_after, MssNoise(sampling.seed, generation.noise))
