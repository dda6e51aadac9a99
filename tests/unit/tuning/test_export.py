"""The exported folder, as others load it and as drafters do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.loading import load_model
from specgrove_drafter.members.feature_maps import FeatureMaps
from specgrove_drafter.tuning.export import Storage, export_ssm, read_offsets
from specgrove_drafter.tuning.hub import load_causal_lm
from specgrove_drafter.tuning.vocabulary import DraftVocabulary
from support.tuning import NUM_FEATURES, randomise

PLAIN = Storage(is_int8=False, feature_layers=(1, 2), unknown_id=0)


def test_exported_folder_loads_anywhere_and_says_the_same(
    ssm: Any, vocabulary: DraftVocabulary, tmp_path: Path
) -> None:
    randomise(ssm.lm_head)
    before = {name: weight.clone() for name, weight in ssm.state_dict().items()}
    for _ in range(2):  # the second replaces the first
        size = export_ssm(ssm, vocabulary, "# card\n", tmp_path / "ssm", PLAIN)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ssm"]
    assert size == sum(path.stat().st_size for path in (tmp_path / "ssm").iterdir())
    loaded = load_causal_lm(tmp_path / "ssm")
    tokens = torch.randint(0, vocabulary.size, (2, 17))
    with torch.no_grad():
        want, got = ssm.lm_head(ssm.model(input_ids=tokens).last_hidden_state), loaded(input_ids=tokens).logits
    torch.testing.assert_close(got, want, atol=0.05, rtol=0.02)
    assert loaded.config.draft_vocab_other_id == vocabulary.other_id
    assert loaded.config.target_feature_layers == [1, 2]
    assert loaded.config.vocab_size == vocabulary.size
    assert not torch.equal(loaded.lm_head.weight, loaded.model.embed_tokens.weight)
    assert torch.equal(read_offsets(tmp_path / "ssm"), vocabulary.offsets())
    for name, weight in ssm.state_dict().items():
        assert torch.equal(weight, before[name]), "exporting must not round the SSM itself"


@pytest.mark.parametrize("is_int8", [False, True])
def test_the_runtime_reads_what_was_exported(
    ssm: Any, vocabulary: DraftVocabulary, tmp_path: Path, is_int8: bool
) -> None:
    """Through the loader that drafters use: tokens alone, and with the maps of a depth."""
    randomise(ssm.lm_head)
    folder = tmp_path / "ssm"
    size = export_ssm(ssm, vocabulary, "# card\n", folder, Storage(is_int8, PLAIN.feature_layers, PLAIN.unknown_id))
    loaded, maps = load_model(folder, weights="float32", target_vocab_size=259), FeatureMaps.load(folder)
    assert maps is not None
    assert (maps.max_distance, maps.layout.layers) == (2, (1, 2))
    assert maps.token_map is not None
    if maps.head_rows is not None:
        loaded.replace_head(maps.head_rows)
    tokens, features = torch.randint(0, vocabulary.size, (1, 40)), torch.randn(40, NUM_FEATURES)
    cache = loaded.new_cache(max_tokens=64)
    with torch.no_grad():
        own = ssm.model(input_ids=tokens).last_hidden_state[0]
        for depth in (0, 1, 2):
            state_map = maps.state_maps[depth - 1] if depth else maps.token_map
            fed = features @ maps.feature_maps[depth - 1] if depth else torch.zeros(40, 32)
            rows = SequenceRows(cache.new_sequence(), tokens[0].tolist(), range(40), range(-1, 39), [True] * 40)
            got = PackedForward(loaded, cache).run([rows], lambda states, m=state_map, f=fed: states @ m + f)
            cache.release(rows.seq)
            want = ssm.lm_head.read(ssm.lm_head.guess(own, features, depth))
            error = float((got - want).square().mean().sqrt() / want.square().mean().sqrt())
            assert error < (0.05 if is_int8 else 0.01), depth
    stored = load_file(folder / "model.safetensors")
    assert stored["model.layers.0.mlp.up_proj.weight"].dtype == (torch.int8 if is_int8 else torch.float16)
    assert ("lm_head.weight" in stored) != is_int8, "rows that head and embedding share are written once"
    assert size > 0
