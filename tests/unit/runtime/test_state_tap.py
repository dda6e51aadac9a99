"""States read in passing are those the model itself reports, and reading them leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from specgrove.errors import ModelLoadError
from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.runtime.state_tap import StateTap
from support.tiny_models import CONFIGS, own_model, write_tiny_model

NUM_LAYERS = 4
PROMPT = [5, 6, 7, 8, 9]


def own_states(folder: Path, token_ids: list[int], layers: tuple[int, ...]) -> torch.Tensor:  # float32 [P, H]
    """Of the last token; the final normalised states come last."""
    output = own_model(folder)(input_ids=torch.tensor([token_ids]), output_hidden_states=True)
    return torch.stack([output.hidden_states[layer][0, -1] for layer in (*layers, NUM_LAYERS)])


@pytest.mark.parametrize("weights", ["float32", "fp16_packed"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_states_of_tree_rows_are_the_models_own(architecture: str, weights: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, architecture, num_hidden_layers=NUM_LAYERS)
    loaded = load_model(folder, weights)
    cache = loaded.new_cache(max_tokens=64, block_size=4)
    forward, first, second = PackedForward(loaded, cache), cache.new_sequence(), cache.new_sequence()
    tree = SequenceRows(
        first, [*PROMPT, 20, 30], [0, 1, 2, 3, 4, 5, 5], [-1, 0, 1, 2, 3, 4, 4], [False] * 4 + [True] * 3
    )
    beside = SequenceRows(second, [40, 41], [0, 1], [-1, 0], [False, True])

    outputs = forward.run_and_read([beside, tree], loaded.state_tap(), (3, 1))

    paths = [[40, 41], PROMPT, [*PROMPT, 20], [*PROMPT, 30]]
    expected = torch.stack([own_states(folder, path, (3, 1)) for path in paths])
    tolerance = 1e-4 if weights == "float32" else 0.03 * float(expected.abs().max())
    torch.testing.assert_close(outputs.states, expected, atol=tolerance, rtol=1e-4)
    cache.rollback(first)
    cache.rollback(second)
    torch.testing.assert_close(outputs.logits, forward.run([beside, tree]), atol=1e-4, rtol=1e-4)


def hooks_of(loaded: LoadedModel) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in loaded.model.modules())


def test_no_hook_stays_behind_even_when_a_forward_fails(tmp_path: Path) -> None:
    loaded = load_model(write_tiny_model(tmp_path, num_hidden_layers=NUM_LAYERS), "float32", decoder="transformers")
    cache = loaded.new_cache(max_tokens=64)
    forward, num_before = PackedForward(loaded, cache), hooks_of(loaded)

    def fail(states: torch.Tensor) -> torch.Tensor:
        assert hooks_of(loaded) == num_before + 1
        raise RuntimeError("no")

    rows = SequenceRows(cache.new_sequence(), PROMPT, range(5), range(-1, 4), [True] * 5)
    with pytest.raises(RuntimeError):
        forward.run([rows], fail)
    cache.rollback(rows.seq)
    forward.run_and_read([rows], loaded.state_tap(), (1,))
    assert hooks_of(loaded) == num_before


@pytest.mark.parametrize("weights", ["float32", "fp16_packed"])
def test_what_goes_into_the_head_can_be_changed_for_one_forward(weights: str, tmp_path: Path) -> None:
    loaded = load_model(write_tiny_model(tmp_path), weights)
    cache = loaded.new_cache(max_tokens=64)
    forward = PackedForward(loaded, cache)
    rows = SequenceRows(cache.new_sequence(), PROMPT, range(5), range(-1, 4), [False, True, False, True, True])
    plain = forward.run([rows])
    cache.rollback(rows.seq)

    doubled = forward.run([rows], lambda states: states * torch.tensor([2.0, 1.0, 0.0])[:, None])

    torch.testing.assert_close(doubled, plain * torch.tensor([2.0, 1.0, 0.0])[:, None], atol=1e-4, rtol=1e-3)
    cache.rollback(rows.seq)
    torch.testing.assert_close(forward.run([rows]), plain, atol=1e-5, rtol=1e-5)


class Opaque(nn.Module):
    """A model whose layers are in no list."""

    def __init__(self) -> None:
        super().__init__()
        self.base_model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.mark.parametrize("model", [Opaque(), nn.ModuleList([nn.Linear(2, 2)] * 2)])
def test_a_model_without_a_list_of_layers_is_refused_by_name(model: nn.Module) -> None:
    with pytest.raises(ModelLoadError, match=f"{type(model).__name__} has no decoder with a list of 2 layers"):
        StateTap.find(model, 2)
