"""Rule `naive`, enumerated: every way the target's own draws can fall, and what the walk makes of each."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

import pytest

from specgrove.sampling.verification import verify_tree
from specgrove.tree import TokenTree

VOCAB = 3


def _law(chance: random.Random) -> list[float]:
    weights = [chance.random() + 0.05 for _ in range(VOCAB)]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("seed", range(6))
def test_the_first_three_tokens_have_the_targets_law_whatever_was_drafted(seed: int) -> None:
    """At each node the target draws by itself; a path that ends early goes on by plain decoding."""
    chance = random.Random(seed)
    laws = {path: _law(chance) for size in range(3) for path in itertools.product(range(VOCAB), repeat=size)}
    drafted = [path for path in laws if path and chance.random() < 0.6]
    tree = TokenTree.from_paths(0, drafted)
    paths = [tree.token_path(node) for node in range(tree.num_nodes)]
    observed: dict[tuple[int, ...], float] = defaultdict(float)
    for choices in itertools.product(range(VOCAB), repeat=tree.num_nodes):
        prob = 1.0
        for path, choice in zip(paths, choices, strict=True):
            prob *= laws[path][choice]
        committed = verify_tree(tree, choices).committed_token_ids(tree)
        for rest in itertools.product(range(VOCAB), repeat=3 - len(committed)):
            tokens = (*committed, *rest)
            of_rest = 1.0
            for place in range(len(committed), 3):
                of_rest *= laws[tokens[:place]][tokens[place]]
            observed[tokens] += prob * of_rest
    for tokens in itertools.product(range(VOCAB), repeat=3):
        wanted = laws[()][tokens[0]] * laws[tokens[:1]][tokens[1]] * laws[tokens[:2]][tokens[2]]
        assert observed[tokens] == pytest.approx(wanted, abs=1e-12)
