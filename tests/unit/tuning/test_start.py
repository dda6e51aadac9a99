"""An SSM that goes on from an exported one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specgrove_drafter.tuning.__main__ import main
from specgrove_drafter.tuning.errors import SettingsError
from specgrove_drafter.tuning.export import Storage, export_ssm
from specgrove_drafter.tuning.hub import Target, load_target_model
from specgrove_drafter.tuning.ssm import build_ssm
from specgrove_drafter.tuning.start import fingerprint, start_from
from specgrove_drafter.tuning.vocabulary import DraftVocabulary
from support.tuning import NUM_FEATURES, randomise


def _like(ssm: Any, target: Target, vocabulary: DraftVocabulary, *, num_depths: int | None = None) -> Any:
    """A fresh SSM of `ssm`'s shape over `vocabulary`, before any fit."""
    model = load_target_model(target, torch.device("cpu"), pack=False)
    depths = ssm.lm_head.num_depths if num_depths is None else num_depths
    ids: dict[str, int | None] = {"eos_token_id": 0, "bos_token_id": None, "pad_token_id": None}
    return build_ssm(model, vocabulary, ssm.config.num_hidden_layers, ids, num_depths=depths, num_features=NUM_FEATURES)


def _finished(ssm: Any, vocabulary: DraftVocabulary, folder: Path, *, is_int8: bool) -> Path:
    torch.manual_seed(4)
    randomise(ssm.lm_head)
    with torch.no_grad():
        for weight in ssm.model.layers.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    export_ssm(ssm, vocabulary, "# card\n", folder, Storage(is_int8, (1, 2), 0))
    return folder


@pytest.mark.parametrize("is_int8", [False, True])
def test_it_says_what_the_exported_one_says(
    ssm: Any, target: Target, vocabulary: DraftVocabulary, tmp_path: Path, is_int8: bool
) -> None:
    folder = _finished(ssm, vocabulary, tmp_path / "ssm", is_int8=is_int8)
    fresh = _like(ssm, target, vocabulary)
    start_from(fresh, folder, vocabulary)
    tokens, features = torch.randint(0, vocabulary.size, (1, 30)), torch.randn(30, NUM_FEATURES)
    with torch.no_grad():
        for depth in (0, 1, 2):
            states = [each.model(input_ids=tokens).last_hidden_state[0] for each in (ssm, fresh)]
            want, got = (
                each.lm_head.read(each.lm_head.guess(own, features, depth))
                for each, own in zip((ssm, fresh), states, strict=True)
            )
            error = float((got - want).square().mean().sqrt() / want.square().mean().sqrt())
            assert error < (0.1 if is_int8 else 0.005), depth


def test_another_vocabulary_keeps_the_rows_of_its_tokens(
    ssm: Any, target: Target, vocabulary: DraftVocabulary, tmp_path: Path
) -> None:
    with torch.no_grad():
        ssm.lm_head.rows.add_(1.0)
        ssm.model.embed_tokens.weight.add_(1.0)
    folder = _finished(ssm, vocabulary, tmp_path / "ssm", is_int8=False)
    kept = vocabulary.target_ids[::2]
    added = torch.tensor(
        [t for t in range(vocabulary.target_vocab_size) if t not in set(vocabulary.target_ids.tolist())]
    )
    other = DraftVocabulary(torch.cat([kept, added[:5]]).sort().values, vocabulary.target_vocab_size)
    fresh = _like(ssm, target, other)
    own_rows = fresh.lm_head.rows.detach().clone()
    start_from(fresh, folder, other)
    for place, token in enumerate(other.target_ids.tolist()):
        old = int(vocabulary.to_draft()[token])
        is_known = old != vocabulary.other_id
        want = ssm.lm_head.rows[old] if is_known else own_rows[place]
        torch.testing.assert_close(fresh.lm_head.rows[place], want, atol=2e-3, rtol=1e-3)
        if is_known:
            embedded = ssm.model.embed_tokens.weight[old]
            torch.testing.assert_close(fresh.model.embed_tokens.weight[place], embedded, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(fresh.lm_head.other, ssm.lm_head.other, atol=2e-3, rtol=1e-3)


def test_another_shape_is_refused(ssm: Any, target: Target, vocabulary: DraftVocabulary, tmp_path: Path) -> None:
    folder = _finished(ssm, vocabulary, tmp_path / "ssm", is_int8=True)
    with pytest.raises(SettingsError, match="not the shape that is asked for"):
        start_from(_like(ssm, target, vocabulary, num_depths=1), folder, vocabulary)


@pytest.mark.parametrize("missing", ["model.safetensors", "feature_maps.safetensors", "draft_vocab.safetensors"])
def test_an_incomplete_folder_is_named(
    ssm: Any, target: Target, vocabulary: DraftVocabulary, tmp_path: Path, missing: str
) -> None:
    folder = _finished(ssm, vocabulary, tmp_path / "ssm", is_int8=True)
    (folder / missing).unlink()
    with pytest.raises(SettingsError, match=f"--start-from: .*{missing}"):
        fingerprint(folder)
    with pytest.raises(SettingsError, match="--start-from"):
        start_from(_like(ssm, target, vocabulary), folder, vocabulary)


def test_the_command_goes_on_from_a_folder(
    target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--target", str(target_folder), "--depths", "2", "--feature-layers", "1,2", "--draft-vocab-size", "100"]
    text = ["--tokens", "3000", "--slots", "40", "--document-tokens", "150", "--threads", "1", "--seed", "5"]
    work = ["--work-dir", str(tmp_path / "work")]
    assert main([*shape, *text, *work, "--distil-steps", "3", "--out", str(tmp_path / "first")]) == 0
    longer = [*shape, *text, *work, "--resume", "--distil-steps", "0", "--start-from", str(tmp_path / "first")]
    capsys.readouterr()
    assert main([*longer, "--out", str(tmp_path / "second")]) == 1, "the checkpoint of a run with another start"
    assert "distil-1.pt was made with other documents or settings" in capsys.readouterr().err
    (tmp_path / "work" / "distil-1.pt").unlink()
    assert main([*longer, "--out", str(tmp_path / "second")]) == 0
    assert "goes on from" in capsys.readouterr().err
    card = (tmp_path / "second" / "README.md").read_text()
    assert "--start-from first" in card
    assert "an earlier SSM of the same shape, first" in card
    assert main([*longer, "--start-from", str(tmp_path / "nowhere"), "--out", str(tmp_path / "second")]) == 2
