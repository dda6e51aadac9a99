"""The mask that the packed forward really builds, against the closure of the parents."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from specgrove.runtime.attention import PackedStep
from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.kv_cache import CachedSequence, KVCache, KVShape
from specgrove.runtime.loading import LoadedModel
from specgrove.runtime.state_tap import RewriteStates


class RecordingModel:
    """Stands where the model does and keeps the step it was handed."""

    device = torch.device("cpu")
    has_windows = True
    paged = None

    def __init__(self) -> None:
        self.steps: list[PackedStep] = []
        self.calls: list[SimpleNamespace] = []

    def logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        step: PackedStep,
        before_head: RewriteStates | None,
    ) -> torch.Tensor:
        self.steps.append(step)
        self.calls.append(SimpleNamespace(token_ids=token_ids, positions=positions, wanted=wanted))
        return torch.zeros(wanted.numel(), 1)


def _parents(draw: st.DrawFn, num_rows: int) -> list[int]:
    return [draw(st.integers(-1, row - 1)) for row in range(num_rows)]


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    return _parents(draw, draw(st.integers(1, 40)))


def _closure(parents: list[int]) -> torch.Tensor:  # bool [N, N]
    size = len(parents)
    reach = torch.eye(size)
    for row, parent in enumerate(parents):
        if parent >= 0:
            reach[row, parent] = 1
    for _ in range(size.bit_length()):
        reach = ((reach @ reach) > 0).float()
    return reach.bool()


def _run(prefix_len: int, waves: list[list[int]]) -> tuple[RecordingModel, CachedSequence]:
    """Rows in flight that come in `waves` (parents counted over all waves) after a cached prefix."""
    model = RecordingModel()
    cache = KVCache(KVShape(1, 1, 1, torch.float32), num_blocks=80, block_size=4)
    forward = PackedForward(cast(LoadedModel, cast(Any, model)), cache)
    seq = cache.new_sequence()
    if prefix_len:
        forward.run(
            [SequenceRows(seq, [0] * prefix_len, range(prefix_len), range(-1, prefix_len - 1), [False] * prefix_len)]
        )
        cache.commit(seq, range(prefix_len))
    depths: list[int] = []
    for wave in waves:
        for parent in wave:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        positions = [prefix_len + depth for depth in depths[-len(wave) :]]
        forward.run([SequenceRows(seq, [0] * len(wave), positions, wave, [True] * len(wave))])
    return model, seq


def _visible(step: PackedStep, in_flight: int) -> torch.Tensor:
    part = step.parts[0]
    if part.mask.visible is None:  # "sees everything" is only ever said of one row
        assert part.stop - part.start == 1
        return torch.ones(1, in_flight, dtype=torch.bool)
    return part.mask.visible


@given(forests(), st.integers(0, 9))
@example([-1, *range(99)], 5)
@example([-1, *[0] * 129], 3)
@example([-1, *[row // 2 for row in range(127)]], 4)
@example([row // 3 - 1 for row in range(200)], 1)
def test_the_mask_is_the_transitive_closure_of_parents(parents: list[int], prefix_len: int) -> None:
    model, _ = _run(prefix_len, [parents])
    step = model.steps[-1]
    assert torch.equal(_visible(step, len(parents)), _closure(parents))
    mask = step.parts[0].mask
    assert mask.key_positions[:prefix_len].tolist() == list(range(prefix_len))
    assert mask.key_positions[prefix_len:].tolist() == mask.query_positions.tolist()
    assert model.calls[-1].positions[0].tolist() == mask.query_positions.tolist()


@given(forests(), st.integers(0, 5), st.data())
def test_a_mask_that_grows_in_waves_has_the_same_rows(parents: list[int], prefix_len: int, data: st.DataObject) -> None:
    cuts = sorted({0, len(parents), *data.draw(st.lists(st.integers(0, len(parents)), max_size=4))})
    waves = [parents[start:stop] for start, stop in pairwise(cuts)]
    model, _ = _run(prefix_len, waves)
    closure = _closure(parents)
    for step, start, stop in zip(model.steps[-len(waves) :], cuts, cuts[1:], strict=False):
        assert torch.equal(_visible(step, stop), closure[start:stop, :stop])


@given(st.lists(forests(), min_size=1, max_size=4))
def test_the_parts_cover_the_packed_rows_in_order_and_share_no_slot(batch: list[list[int]]) -> None:
    model = RecordingModel()
    cache = KVCache(KVShape(1, 1, 1, torch.float32), num_blocks=80, block_size=4)
    forward = PackedForward(cast(LoadedModel, cast(Any, model)), cache)
    rows = [
        SequenceRows(cache.new_sequence(), [0] * len(parents), [0] * len(parents), parents, [True] * len(parents))
        for parents in batch
    ]
    forward.run(rows)
    parts = model.steps[0].parts
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == sum(map(len, batch)) == model.calls[0].token_ids.shape[1]
    slots = torch.arange(cache.num_blocks * cache.block_size)
    written = torch.cat([slots[part.write_slots] for part in parts])
    assert written.unique().numel() == written.numel() == parts[-1].stop
