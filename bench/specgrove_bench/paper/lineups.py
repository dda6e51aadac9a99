"""The sets of members that tables d and e put side by side, each with the nodes it may draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specgrove.tree import ExpansionConfig
from specgrove_bench.paper.speculator import MemberMaker, Ssm, SsmPool, make_lookup
from specgrove_drafter.jobs import Budget

MODEL_FREE = "model-free"
EVERYONE = "pool + model-free"
_CHAIN_LEN = 4


@dataclass(frozen=True, slots=True)
class Lineup:
    """Members together, in the order of their bits; `num_models` of them run a model."""

    name: str
    members: tuple[MemberMaker, ...]
    budget: Budget
    num_models: int


def merge_lineups(pool: SsmPool) -> list[Lineup]:
    """Chains of every SSM merged, against one SSM's tree that is as wide at its root; as many nodes at most."""
    count = len(pool.ssms)
    chain = "1" + ",1" * (_CHAIN_LEN - 1)
    # A pool of one has nothing to merge; the pair of shapes is still worth seeing.
    wide = f"{max(count, 2)}" + ",1" * (_CHAIN_LEN - 1)
    alone = [
        Lineup(f"{ssm.name} <{expansion}>", (ssm.grower(expansion),), _whole(expansion), 1)
        for expansion in (chain, wide)
        for ssm in pool.ssms
    ]
    if count < 2:
        return alone
    budget = Budget(count * _CHAIN_LEN, _CHAIN_LEN)
    return [
        *alone,
        Lineup(f"{count} chains <{chain}> merged", tuple(ssm.grower(chain) for ssm in pool.ssms), budget, count),
    ]


def pool_lineups(pool: SsmPool, budget: Budget) -> list[Lineup]:
    """Every member alone, the first SSM and the SSMs together with and without the model-free member; one budget.

    Together means as a drafter runs them, SSMs of one shape as one; beside it their own trees merged by path.
    """
    count = len(pool.ssms)
    lookup = (make_lookup,)
    sets: list[tuple[str, Sequence[Ssm], tuple[MemberMaker, ...]]] = [
        *((ssm.name, [ssm], ()) for ssm in pool.ssms),
        (MODEL_FREE, [], lookup),
        *((f"{ssm.name} + {MODEL_FREE}", [ssm], lookup) for ssm in pool.ssms[:1]),
    ]
    if count > 1:
        sets += [("pool of SSMs", pool.together, ()), (EVERYONE, pool.together, lookup)]
    if pool.stacks:
        sets += [("SSMs' own trees merged", pool.ssms, ())]
    return [Lineup(name, (*(ssm.grower() for ssm in ssms), *free), budget, len(ssms)) for name, ssms, free in sets]


def _whole(expansion: str) -> Budget:
    config = ExpansionConfig.parse(expansion)
    return Budget(config.num_draft_nodes, config.max_depth)
