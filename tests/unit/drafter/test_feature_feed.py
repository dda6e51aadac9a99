"""A feature-fed SSM: each row gets the maps of its own distance, computed here once more by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specgrove.features import FeatureLayout, TargetFeatures
from specgrove.runtime.loading import load_model
from specgrove.runtime.packed_linear import PackedLinear
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.draft_model import ROOT_ROW, NodeRow
from specgrove_drafter.members.feature_feed import FeatureFeed
from specgrove_drafter.members.feature_maps import FeatureMaps
from specgrove_drafter.members.law import ERROR_SCALE
from specgrove_drafter.members.map_products import TorchMaps
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.trees.growth import Children
from support.drafter_fakes import make_job
from support.feature_maps import write_feature_maps
from support.tiny_models import own_model, write_tiny_model

VOCAB = 96
HIDDEN = 32
LAYERS = (3, 1)
SENT = FeatureLayout((1, 2, 3), HIDDEN)  # another member wants layer 2 as well
TOKENS = [5, 9, 33, 7]


@dataclass(frozen=True, slots=True)
class Fed:
    """A feature-fed SSM beside what it is made of."""

    model: RuntimeDraftModel
    own: Any
    maps: dict[str, torch.Tensor]
    num_fed: list[int]

    @torch.inference_mode()
    def law(self, tokens: Sequence[int], distance: int | None, values: torch.Tensor) -> torch.Tensor:
        """Log probabilities after `tokens`; `distance` None is the SSM by itself. `values` float32 [4, HIDDEN]."""
        states = self.own.model(input_ids=torch.tensor([list(tokens)])).last_hidden_state[0, -1]
        if distance is not None:
            features = torch.cat([values[2], values[0], values[3]])  # layers 3, 1, and the final states
            states = states @ self.maps["state_maps"][distance - 1]
            states = states + features @ self.maps["feature_maps"][distance - 1]
        return (self.own.lm_head(states) / ERROR_SCALE).log_softmax(-1)

    def assert_law(self, children: Children | None, tokens: Sequence[int], distance: int | None, values: Any) -> None:
        assert children is not None
        law = self.law(tokens, distance, values)
        torch.testing.assert_close(torch.tensor(children.log_probs), law.topk(8).values, atol=2e-3, rtol=1e-3)
        assert list(children.token_ids) == law.topk(8).indices.tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("ssm"), vocab_size=VOCAB, hidden_size=HIDDEN)


@pytest.fixture
def fed(folder: Path) -> Fed:
    maps, num_fed = write_feature_maps(folder, LAYERS), []
    loaded_maps = FeatureMaps.load(folder)
    assert loaded_maps is not None
    feed = FeatureFeed(loaded_maps, SENT, on_fed=num_fed.append)
    model = RuntimeDraftModel(load_model(folder, "float32"), target_vocab_size=VOCAB, max_cached_tokens=512, feed=feed)
    return Fed(model, own_model(folder), maps, num_fed)


def make_features(base_len: int, seed: int = 0) -> tuple[TargetFeatures, torch.Tensor]:
    values = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(seed)).half()
    return TargetFeatures(base_len, values.numpy().astype("<f2").tobytes()), values.float()


def job_for(tokens: list[int], features: TargetFeatures | None, key: int = 1) -> DraftJob:
    return replace(make_job(tokens, session=SessionRef(1, key)), token_ids=tokens, features=features)


def test_each_depth_gets_its_own_maps_and_rows_beyond_them_none(fed: Fed) -> None:
    features, values = make_features(len(TOKENS))
    job = job_for([*TOKENS], features)
    [root] = fed.model.start([job], 8)
    fed.assert_law(root, TOKENS, 1, values)
    row, path = ROOT_ROW, [*TOKENS]
    for depth, token_id in enumerate([11, 12, 13], start=1):
        [expanded] = fed.model.extend([NodeRow(job, row, token_id, depth)], 8)
        row = expanded.row
        path.append(token_id)
        fed.assert_law(expanded.children, path, depth + 1 if depth < 3 else None, values)
    assert fed.num_fed == [1, 1, 1]


def test_one_level_may_hold_rows_of_several_depths_and_sessions(fed: Fed) -> None:
    (one, values), (other, other_values) = make_features(4, 1), make_features(3, 2)
    jobs = [job_for([*TOKENS], one, 1), job_for([8, 9, 10], other, 2), job_for([7, 7], None, 3)]
    roots = fed.model.start(jobs, 8)
    fed.assert_law(roots[0], TOKENS, 1, values)
    fed.assert_law(roots[1], [8, 9, 10], 1, other_values)
    fed.assert_law(roots[2], [7, 7], None, values)
    [first] = fed.model.extend([NodeRow(jobs[0], ROOT_ROW, 11, 1)], 8)
    nodes = [
        NodeRow(jobs[2], ROOT_ROW, 40, 1),
        NodeRow(jobs[0], first.row, 12, 2),
        NodeRow(jobs[1], ROOT_ROW, 13, 1),
        NodeRow(jobs[0], ROOT_ROW, 14, 1),
    ]
    expanded = [each.children for each in fed.model.extend(nodes, 8)]
    fed.assert_law(expanded[0], [7, 7, 40], None, values)
    fed.assert_law(expanded[1], [*TOKENS, 11, 12], 3, values)
    fed.assert_law(expanded[2], [8, 9, 10, 13], 2, other_values)
    fed.assert_law(expanded[3], [*TOKENS, 14], 2, values)
    assert fed.num_fed == [2, 1, 3]


@pytest.mark.parametrize(("num_behind", "distances"), [(1, [2, 3]), (2, [3, None]), (3, [None, None]), (-1, [None, 1])])
def test_features_of_another_base_serve_by_distance(fed: Fed, num_behind: int, distances: list[int | None]) -> None:
    features, values = make_features(len(TOKENS) - num_behind)
    job = job_for([*TOKENS], features)
    [root] = fed.model.start([job], 8)
    fed.assert_law(root, TOKENS, distances[0], values)
    [expanded] = fed.model.extend([NodeRow(job, ROOT_ROW, 11, 1)], 8)
    fed.assert_law(expanded.children, [*TOKENS, 11], distances[1], values)


def test_new_features_take_the_place_of_old_ones(fed: Fed) -> None:
    tokens = [*TOKENS]
    first, _ = make_features(4, seed=1)
    fed.model.start([job_for(tokens, first)], 8)
    tokens.append(20)
    second, values = make_features(5, seed=2)
    [root] = fed.model.start([job_for(tokens, second)], 8)
    fed.assert_law(root, tokens, 1, values)


@pytest.mark.parametrize(
    "values",
    [
        b"\0\0" * (3 * HIDDEN),  # a part is missing
        b"\0\0" * (5 * HIDDEN),
        b"\0" * 7,
        np.full(4 * HIDDEN, np.nan, "<f2").tobytes(),
        np.full(4 * HIDDEN, np.inf, "<f2").tobytes(),
    ],
)
def test_what_are_no_features_leaves_the_ssm_by_itself(fed: Fed, values: bytes) -> None:
    [root] = fed.model.start([job_for([*TOKENS], TargetFeatures(len(TOKENS), values))], 8)
    fed.assert_law(root, TOKENS, None, torch.zeros(4, HIDDEN))
    assert fed.num_fed == []


def test_features_are_multiplied_once_for_a_base_and_forgotten_with_the_session(fed: Fed) -> None:
    feed = fed.model._feed
    assert feed is not None
    products: list[int] = []
    maps = feed._products
    assert isinstance(maps, TorchMaps)
    multiply = maps._of_features
    maps._of_features = lambda rows: products.append(rows.shape[0]) or multiply(rows)  # type: ignore[func-returns-value]
    jobs = [job_for([*TOKENS], make_features(4, key)[0], key) for key in (1, 2)]
    fed.model.start(jobs, 8)
    fed.model.extend([NodeRow(job, ROOT_ROW, 11, 1) for job in jobs], 8)
    assert products == [2]
    for job in jobs:
        fed.model.release(job.session)
    assert not feed._fed


def test_packed_maps_say_nearly_the_same(folder: Path, fed: Fed) -> None:
    maps = FeatureMaps.load(folder)
    assert maps is not None
    features, values = make_features(len(TOKENS))
    feed = FeatureFeed(maps, SENT, pack=PackedLinear.from_weight)
    model = RuntimeDraftModel(
        load_model(folder, "fp16_packed"), target_vocab_size=VOCAB, max_cached_tokens=512, feed=feed
    )
    [root] = model.start([job_for([*TOKENS], features)], 8)
    assert root is not None
    law = fed.law(TOKENS, 1, values)
    torch.testing.assert_close(torch.tensor(root.log_probs), law.topk(8).values, atol=0.05, rtol=0.05)
