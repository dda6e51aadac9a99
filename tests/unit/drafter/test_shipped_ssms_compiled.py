"""The shipped SSMs grow the same trees with compiled operators as without, up to near ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from specgrove.features import FeatureLayout, TargetFeatures
from specgrove.runtime.draft_vocab import DraftVocab
from specgrove.runtime.int8_linear import is_int8_supported
from specgrove_drafter.jobs import SessionRef
from specgrove_drafter.members.draft_model import ROOT_ROW, NodeRow
from specgrove_drafter.members.loaded_ssm import LoadedSsm, joint_feed, load_ssm, stacked
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.trees.growth import Children
from support.drafter_fakes import make_job

pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(not is_int8_supported(), reason="needs a CPU with AVX512 VNNI and torch's fbgemm")
_SHIPPED = Path(__file__).parents[3] / "services/drafter/models"
_VOCAB_SIZE = 49152
_SENT = FeatureLayout((10, 20), 576)
# Children whose log probabilities are this close may change places.
_NEAR = 5e-3


@pytest.fixture(scope="module")
def pools() -> dict[str, list[LoadedSsm]]:
    folders = sorted(folder for folder in _SHIPPED.iterdir() if (folder / "config.json").is_file())
    assert len(folders) >= 2
    return {
        choice: [
            load_ssm(folder.name, str(folder), "auto", "cpu", _VOCAB_SIZE, _SENT, cpu_kernels=choice)
            for folder in folders
        ]
        for choice in ("auto", "off")
    }


def model_of(group: Sequence[LoadedSsm]) -> RuntimeDraftModel:
    return RuntimeDraftModel(
        stacked(group), target_vocab_size=_VOCAB_SIZE, max_cached_tokens=1024, feed=joint_feed(group)
    )


def random_features(base_len: int, random: Random) -> TargetFeatures:
    numbers = np.random.default_rng(random.randrange(1 << 30)).standard_normal((3, 576))
    return TargetFeatures(base_len, numbers.astype("<f2").tobytes())


def drafted(model: RuntimeDraftModel, vocab: DraftVocab, *, has_features: bool) -> list[Children]:
    """Laws at the roots of two sessions and below nodes of theirs."""
    random = Random(11)
    listed = vocab.to_target[:2000].tolist()
    jobs = []
    for number, length in enumerate((60, 23)):
        tokens = [random.choice(listed) for _ in range(length)]
        features = random_features(length, random) if has_features else None
        jobs.append(replace(make_job(tokens, session=SessionRef(1, number)), features=features))
    found = [children for children in model.start(jobs, 8) if children is not None]
    parents = [ROOT_ROW] * 4
    for depth in (1, 2, 3):
        chosen = [random.choice(listed) for _ in parents]
        nodes = [
            NodeRow(jobs[place % 2], parent, token, depth)
            for place, (parent, token) in enumerate(zip(parents, chosen, strict=True))
        ]
        expanded = model.extend(nodes, 8)
        parents = [one.row for one in expanded]
        found += [one.children for one in expanded]
    return found


@torch.inference_mode()
@pytest.mark.parametrize("has_features", [False, True])
@pytest.mark.parametrize("num_models", [1, 2])
def test_children_and_their_order_are_the_same(
    pools: dict[str, list[LoadedSsm]], num_models: int, has_features: bool
) -> None:
    vocab = pools["auto"][0].loaded.draft_vocab
    assert vocab is not None
    ours, theirs = (
        drafted(model_of(pools[choice][:num_models]), vocab, has_features=has_features) for choice in ("auto", "off")
    )
    assert len(ours) == 2 + 3 * 4
    for one, other in zip(ours, theirs, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=_NEAR)
        known = dict(zip(other.token_ids, other.log_probs, strict=True))
        for token_id, log_prob in zip(one.token_ids, one.log_probs, strict=True):
            # Not among theirs: as likely as their last.
            assert log_prob == pytest.approx(known.get(token_id, other.log_probs[-1]), abs=2 * _NEAR)
