"""SSMs of one shape run as one: one forward a level, the mean of their laws, each counted by its own bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specgrove.features import FeatureLayout, TargetFeatures
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.rules import Rule
from specgrove.telemetry import CollectorRegistry
from specgrove_drafter.build import TargetVocab, load_ensemble, member_names
from specgrove_drafter.config import DrafterConfig
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.jobs import Budget, DraftJob
from specgrove_drafter.members.draft_model import ROOT_ROW, NodeRow
from specgrove_drafter.members.law import LawRow, rank_children
from specgrove_drafter.members.loaded_ssm import LoadedSsm, joint_feed, load_ssm, stacked, stacks_of
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.trees.growth import Children
from specgrove_drafter.trees.mixing import Mixing
from specgrove_drafter.trees.sent_draft import SentDraft, VerifiedDraft
from support.drafter_fakes import make_job
from support.feature_maps import write_feature_maps
from support.tiny_models import write_tiny_model

VOCAB, HIDDEN, LAYERS = 96, 32, (1, 3)
TOKENS = [5, 9, 33, 7]
SENT = FeatureLayout(LAYERS, HIDDEN)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Two of one shape, the first of them feature-fed, and one of another."""
    made = [write_tiny_model(tmp_path_factory.mktemp(f"ssm-{seed}"), seed=seed) for seed in (1, 2)]
    write_feature_maps(made[0], LAYERS)
    return (*made, write_tiny_model(tmp_path_factory.mktemp("deeper"), num_hidden_layers=3, seed=3))


def load_all(folders: Sequence[Path]) -> list[LoadedSsm]:
    return [load_ssm(folder.name, str(folder), "float32", "cpu", VOCAB, SENT) for folder in folders]


def model_of(group: Sequence[LoadedSsm], mixing: Mixing | None = None) -> RuntimeDraftModel:
    return RuntimeDraftModel(
        stacked(group), target_vocab_size=VOCAB, max_cached_tokens=1024, feed=joint_feed(group), mixing=mixing
    )


def fed_job(tokens: list[int] = TOKENS, budget: Budget = Budget(8, 4)) -> DraftJob:
    values = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(3)).half()
    features = TargetFeatures(len(tokens), values.numpy().astype("<f2").tobytes())
    return replace(make_job(tokens, budget=budget), features=features)


def law_of(children: Children | None) -> dict[int, float]:
    assert children is not None
    return {t: math.exp(p) for t, p in zip(children.token_ids, children.log_probs, strict=True)}


def test_neighbours_of_one_shape_are_stacked_in_the_order_given(folders: tuple[Path, ...]) -> None:
    first, second, deeper = load_all(folders)
    assert [[ssm.name for ssm in group] for group in stacks_of([first, second, deeper])] == [
        [first.name, second.name],
        [deeper.name],
    ]
    assert len(stacks_of([first, deeper, second])) == 3


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.9, 0.1)])
def test_children_are_ranked_by_the_weighted_mean_of_the_laws(
    folders: tuple[Path, ...], weights: tuple[float, float]
) -> None:
    first, second, _ = load_all(folders)
    mixing = Mixing(2)
    mixing._credits["greedy", 1] = mixing._credits["greedy", 2] = [1e9 * weight for weight in weights]
    joint, alone = model_of([first, second], mixing), [model_of([first]), model_of([second])]
    job = fed_job()
    pairs = [(joint.start([job], VOCAB)[0], [model.start([job], VOCAB)[0] for model in alone])]
    rows = [NodeRow(job, ROOT_ROW, token, 1) for token in (11, 12)]
    below = [joint.extend(rows, VOCAB), *(model.extend(rows, VOCAB) for model in alone)]
    pairs += [(both.children, [one.children, two.children]) for both, one, two in zip(*below, strict=True)]
    for together, apart in pairs:
        laws = [law_of(children) for children in apart]
        mean = {token: sum(w * law[token] for w, law in zip(weights, laws, strict=True)) for token in laws[0]}
        assert law_of(together) == pytest.approx(mean, abs=1e-4)
        assert together is not None
        assert list(together.log_probs) == sorted(together.log_probs, reverse=True)
        for place, token in enumerate(together.token_ids):
            assert together.shares[place] == pytest.approx([law[token] for law in laws], abs=1e-4)


@pytest.mark.parametrize("rule", [Rule.MSS, Rule.NAIVE])
def test_what_is_drawn_from_is_the_mean_of_the_laws_after_the_sessions_truncation(rule: Rule) -> None:
    sampling, weights = SamplingParams(temperature=0.7, top_k=5), torch.tensor([0.8, 0.2])
    logits = torch.randn(1, 2, 30, generator=torch.Generator().manual_seed(2)) * 3
    row = LawRow(sampling, 4, rule, tuple(weights.log().tolist()))
    [children] = rank_children(logits, [row], 30)
    mean = (weights[:, None] * logits[0].softmax(-1)).sum(0)
    kept = (mean.topk(5).values.log() / 0.7).softmax(-1)
    assert list(children.token_ids) == mean.topk(5).indices.tolist()
    torch.testing.assert_close(torch.tensor(children.log_probs).exp(), kept)


def ensemble_of(folders: Sequence[Path], tokenizer: Path, **settings: object) -> tuple[Ensemble, DrafterMetrics]:
    config = DrafterConfig(
        ssm=tuple(map(str, folders)),
        tokenizer=str(tokenizer),
        verifiers=("localhost:1",),
        weights="float32",
        kv_tokens=1024,
        min_path_prob=0.0,
        **settings,  # type: ignore[arg-type]
    )
    metrics = DrafterMetrics(CollectorRegistry(), member_names(config))
    return load_ensemble(config, TargetVocab.read(str(tokenizer)), metrics), metrics


def test_a_level_of_several_ssms_is_one_forward(folders: tuple[Path, ...]) -> None:
    def forwards(**settings: object) -> int:
        ensemble, _ = ensemble_of(folders[:2], folders[0], prompt_lookup=False, expansion="1,1,1", **settings)
        [draft] = ensemble.draft([fed_job()])
        assert draft.tree.num_draft_nodes >= 3
        return ensemble.num_forwards

    assert forwards() == 3  # the base, then two levels
    assert forwards(stack_ssms=False) == 6


def test_every_ssm_keeps_its_own_bit_and_name(folders: tuple[Path, ...]) -> None:
    ensemble, _ = ensemble_of(folders, folders[0])
    assert ensemble.member_names == (*(folder.name for folder in folders), "prompt_lookup")
    assert [ensemble.first_bit(bit) for bit in range(4)] == [0, 0, 2, 3]
    [draft] = ensemble.draft([fed_job([5, 6, 7, 8, 5, 6, 7], Budget(24, 4))])
    seen = 0
    for mask in draft.tree.members[1:]:
        assert 0 < mask < 1 << 4
        seen |= mask
    assert seen == 0b1111


def test_an_ensemble_learns_whom_to_believe(folders: tuple[Path, ...]) -> None:
    """The second SSM's first choice is what the target takes."""
    target = model_of(load_all(folders)[1:2])

    def num_right(*, learns: bool) -> int:
        ensemble, _ = ensemble_of(folders[:2], folders[0], prompt_lookup=False)
        right, sequence = 0, [*TOKENS]
        for step in range(60):
            job = fed_job([*sequence], Budget(8, 1))
            target.release(job.session)
            ensemble.release(job.session)
            [law] = target.start([job], 1)
            assert law is not None
            taken = law.token_ids[0]
            [draft] = ensemble.draft([job])
            right += step >= 30 and draft.tree.token_ids[1] == taken
            if learns:
                ensemble.learn(VerifiedDraft(SentDraft(job, draft.tree, draft.proposals), (taken,)))
            sequence.append(taken if step % 3 else 3 + step)
        return right

    assert num_right(learns=True) >= num_right(learns=False) + 4
