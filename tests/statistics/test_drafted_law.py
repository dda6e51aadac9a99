"""What a drafter sends under rule `mss` is exact: over its drafts the verifier's outcome is the target's law.

Every draft is carried through the verifier's trials with their exact chances, so only the draws themselves are
sampled, and a selection by value shows in a few hundred drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from specgrove.draft import ChildLaw
from specgrove.draft_laws import LawfulTree, check_laws, merge_lawful
from specgrove.sampling.mss import ChildTrials
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.tree import ROOT, ExpansionConfig
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.jobs import Budget
from specgrove_drafter.members.member import Member
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.child_sampler import ChildSampler
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, ExpansionPolicy, GrowthPolicy
from support.drafter_fakes import ScriptedMember, TableModel, make_job

VOCAB_SIZE = 5
NUM_DRAFTS = 500
MAX_ERRORS = 4.5  # standard errors; the wrong variant below is off by more than twice as many
PROMPT = (3, 2, 1)

TARGET = {
    0: (0.1, 0.2, 0.3, 0.3, 0.1),
    1: (0.5, 0.1, 0.1, 0.2, 0.1),
    2: (0.05, 0.05, 0.1, 0.2, 0.6),
    3: (0.3, 0.25, 0.2, 0.15, 0.1),
    4: (0.2, 0.2, 0.2, 0.2, 0.2),
}
DRAFT = {token: dict(enumerate(TARGET[(token + 1) % VOCAB_SIZE])) for token in range(VOCAB_SIZE)}
OTHER = {token: dict(enumerate(TARGET[(token + 3) % VOCAB_SIZE])) for token in range(VOCAB_SIZE)}
BEST_FIRST = BestFirstPolicy(BestFirst(min_path_prob=0.05))


def _law(token_id: int) -> torch.Tensor:
    return torch.tensor(TARGET[token_id], dtype=torch.float64)


def _pair_law_of(tree_and_laws: LawfulTree) -> torch.Tensor:  # float64 [V, V]
    """The law of the next two tokens, given this draft."""
    tree, laws = tree_and_laws
    law = torch.zeros(VOCAB_SIZE, VOCAB_SIZE, dtype=torch.float64)

    def tokens_after(node: int) -> tuple[list[tuple[int, float]], torch.Tensor]:
        """(child, chance) for the children of `node`, and the chances of the own token."""
        trials = ChildTrials(_law(tree.token_ids[node]), [one for one in laws if one.parent == node], tree.token_ids)
        taken, still_here = [], 1.0
        for trial in trials:
            taken.append((trial.node, still_here * trial.acceptance))
            still_here *= 1.0 - trial.acceptance
        return taken, still_here * trials.residual

    accepted, own = tokens_after(ROOT)
    for token_id in range(VOCAB_SIZE):  # the step ends: the next one draws from the target's law
        law[token_id] += own[token_id] * _law(token_id)
    for child, chance in accepted:
        below, own_below = tokens_after(child)
        law[tree.token_ids[child]] += chance * own_below
        for grandchild, chance_below in below:
            law[tree.token_ids[child], tree.token_ids[grandchild]] += chance * chance_below
    return law


def _expected() -> torch.Tensor:
    return torch.stack([_law(PROMPT[-1])[token_id] * _law(token_id) for token_id in range(VOCAB_SIZE)])


def _error(drafts: Sequence[LawfulTree]) -> float:
    """How many standard errors the worst entry is off, of the pairs' law and of the first token's."""
    pairs = torch.stack([_pair_law_of(draft) for draft in drafts])
    return max(_worst(pairs, _expected()), _worst(pairs.sum(dim=-1), _expected().sum(dim=-1)))


def _worst(samples: torch.Tensor, expected: torch.Tensor) -> float:
    # Of values between 0 and m with mean e the variance is at most e * m: sound where what was seen is rare.
    standard_error = (expected * samples.amax(dim=0) / len(samples)).sqrt()
    return float(((samples.mean(dim=0) - expected).abs() / standard_error.clamp_min(1e-9)).max())


def _ssm(
    seed: int, policy: GrowthPolicy = BEST_FIRST, laws: dict[int, dict[int, float]] = DRAFT, name: str = "a"
) -> SsmMember:
    return SsmMember(name, TableModel(laws), policy, sampler=ChildSampler(seed))


def _drafts(members: Sequence[Member], budget: Budget, count: int = NUM_DRAFTS) -> list[LawfulTree]:
    ensemble = Ensemble(members)
    job = replace(make_job(PROMPT, budget=budget, sampling=SamplingParams(temperature=1.0)), rule=Rule.MSS)
    drafts = [draft for _ in range(count) for draft in ensemble.draft([job])]
    return [
        (draft.tree, check_laws(draft.tree, draft.laws, vocab_size=VOCAB_SIZE, max_draws=budget.max_nodes))
        for draft in drafts
    ]


@pytest.mark.parametrize(
    ("members", "budget"),
    [
        ([_ssm(1)], Budget(6, 3)),
        ([_ssm(2)], Budget(3, 2)),
        ([_ssm(3, ExpansionPolicy(ExpansionConfig((2, 2))))], Budget(6, 3)),
        ([_ssm(4, ExpansionPolicy(ExpansionConfig((3, 2))))], Budget(5, 3)),
        ([_ssm(5), _ssm(6, laws=OTHER, name="b")], Budget(8, 3)),
        ([ScriptedMember("lookup", chains=[(4, 2), (0,)]), _ssm(7)], Budget(7, 3)),
        ([ScriptedMember("lookup", chains=[(4, 2), (0,)])], Budget(3, 3)),
    ],
    ids=["best-first", "small", "static", "static cut", "two members", "with lookup", "lookup alone"],
)
def test_the_outcome_of_an_ensembles_drafts_is_the_targets_law(members: list[Member], budget: Budget) -> None:
    assert _error(_drafts(members, budget)) < MAX_ERRORS


def test_the_outcome_of_two_drafters_merged_and_cut_is_the_targets_law() -> None:
    one = _drafts([_ssm(8)], Budget(6, 3))
    other = _drafts([_ssm(9, laws=OTHER), _ssm(10, name="b")], Budget(6, 3))
    assert _error([merge_lawful(pair, 6) for pair in zip(one, other, strict=True)]) < MAX_ERRORS


def _best_siblings(draft: LawfulTree) -> LawfulTree:
    """The wrong cut: of each law's draws the two likeliest, in the order drawn, as an estimate would keep them."""
    tree, laws = draft
    kept_laws: list[ChildLaw] = []
    for law in laws:
        by_prob = sorted(law.draws, key=lambda node: -law.probs[law.token_ids.index(tree.token_ids[node])])
        kept_laws.append(replace(law, draws=tuple(node for node in law.draws if node in by_prob[:2])))
    reached = {ROOT, *(node for law in kept_laws for node in law.draws)}
    return tree, tuple(law for law in kept_laws if law.parent in reached)


def test_keeping_the_best_of_the_sampled_siblings_would_be_seen() -> None:
    drafts = _drafts([_ssm(11, ExpansionPolicy(ExpansionConfig((4, 2))))], Budget(12, 2))
    assert _error(drafts) < MAX_ERRORS
    assert _error([_best_siblings(draft) for draft in drafts]) > 2 * MAX_ERRORS


def test_dropping_the_laws_below_unlikely_draws_is_no_selection() -> None:
    """Which node is expanded may depend on the path above it: that is why best-first growth is exact."""
    drafts = _drafts([_ssm(12)], Budget(9, 3))
    expanded = {law.parent for _, laws in drafts for law in laws}
    assert len(expanded) > 2
    assert _error(drafts) < MAX_ERRORS
