"""A drafter for engine tests that draws its trees from laws, as rule `mss` wants it: honest, and as bad as it likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specgrove.draft import ChildLaw, Draft
from specgrove.tree import ROOT, TreeBuilder
from specgrove_drafter.trees.child_sampler import ChildSampler
from support.engine_stand import InProcessDrafter, Mirror

LawAfter = Callable[[tuple[int, ...]], Sequence[float]]  # all tokens so far -> probabilities of the next


def lawful_drafter(laws: Sequence[LawAfter], widths: Sequence[int], seed: int, number: int = 1) -> InProcessDrafter:
    """Draws a tree of shape `widths` with the members `laws`, each its own draws below every node."""
    sampler = ChildSampler(seed)

    def respond(drafter: InProcessDrafter, mirror: Mirror) -> None:
        if mirror.budget.max_nodes:
            drafter.send(_draw(mirror, laws, widths, sampler))

    return InProcessDrafter(number=number, respond=respond)


def _draw(mirror: Mirror, laws: Sequence[LawAfter], widths: Sequence[int], sampler: ChildSampler) -> Draft:
    builder = TreeBuilder(mirror.token_ids[-1])
    child_laws: list[ChildLaw] = []
    num_left = mirror.budget.max_nodes
    level: list[tuple[int, tuple[int, ...]]] = [(ROOT, tuple(mirror.token_ids))]
    for width in list(widths)[: mirror.budget.max_depth]:
        below: dict[int, tuple[int, ...]] = {}
        for node, text in level:
            for law_after in laws:
                probs = torch.tensor(law_after(text), dtype=torch.float32)
                ids = tuple(probs.nonzero().flatten().tolist())
                kept = tuple(probs[list(ids)].tolist())
                count = min(width, num_left, len(ids))
                if count == 0:
                    continue
                num_left -= count
                tokens = [ids[place] for place in sampler.draw(kept, count)]
                draws = tuple(builder.add(node, token_id) for token_id in tokens)
                child_laws.append(ChildLaw(node, ids, kept, draws))
                below |= {child: (*text, token_id) for child, token_id in zip(draws, tokens, strict=True)}
        level = list(below.items())
    tree = builder.build()
    bare = mirror.draft(tree)
    return Draft(
        bare.session_key,
        bare.base_len,
        bare.base_hash,
        bare.token_ids,
        bare.parents,
        bare.members,
        laws=tuple(child_laws),
    )


def flat_law(vocab_size: int) -> LawAfter:
    """Every token is as likely."""
    return lambda text: [1.0 / vocab_size] * vocab_size


def skewed_law(vocab_size: int, shift: int) -> LawAfter:
    """Likely tokens depend on the last one; some have no chance."""
    weights = [0.0 if place % 3 == 2 else 2.0**-place for place in range(vocab_size)]

    def after(text: tuple[int, ...]) -> list[float]:
        turned = [weights[(token_id + text[-1] + shift) % vocab_size] for token_id in range(vocab_size)]
        return [weight / sum(turned) for weight in turned]

    return after
