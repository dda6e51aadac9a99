"""The compiled operators of a step against torch's own: same logits, same states, same cache, whatever the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

pytest.importorskip("numba")
from specgrove.runtime import compiled_step
from specgrove.runtime.compiled_step import CompiledLayers, CompiledStep
from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.lean_decoder import LeanDecoder
from specgrove.runtime.lean_step import LeanStep
from specgrove.runtime.loading import LoadedModel, load_model, stack
from specgrove_kernels.cpu import compiled
from support.forward_cases import Case, Runner, Text, random_tokens, random_tree
from support.tiny_models import write_tiny_model

_TOLERANCE = 1e-5  # of the largest logit
_ARCHITECTURES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("qwen2", {}),
    ("mistral", {"sliding_window": None}),
    ("llama", {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 50}),
    ("llama", {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 1, "rms_norm_eps": 1e-2}),
]


@dataclass(slots=True)
class Pair:
    """One model twice: with compiled operators and without."""

    runners: tuple[Runner, Runner]

    @classmethod
    def load(cls, folder: Path, *, num_blocks: int = 200) -> Pair:
        loaded = [load_model(folder, "fp16_packed", cpu_kernels=choice) for choice in ("auto", "off")]
        return cls(tuple(Case(None, one).runner(num_blocks=num_blocks) for one in loaded))  # type: ignore[arg-type]

    def texts(self, tokens: Sequence[int], *, scatter: Random | None = None) -> list[Text]:
        """`tokens` cached in both, in the same blocks: neighbours, or in no order."""
        texts = [Text(runner.cache.new_sequence()) for runner in self.runners]
        if scatter is not None:
            first = self.runners[0].cache
            blocks = [runner.cache.allocator.allocate(first.blocks_for(len(tokens) + 40)) for runner in self.runners]
            order = scatter.sample(range(len(blocks[0])), len(blocks[0]))
            for text, own in zip(texts, blocks, strict=True):
                text.seq.block_table, text.seq.is_contiguous = [own[place] for place in order], False
        for runner, text in zip(self.runners, texts, strict=True):
            for start in range(0, len(tokens), 50):
                chunk = tokens[start : start + 50]
                runner.forward.run([runner.chain(text, chunk, wants=False)])
                runner.commit(text, chunk, range(len(chunk)))
        return texts


def agree(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    worst = float((actual - expected).abs().max() / expected.abs().max())
    assert worst <= _TOLERANCE, f"differs by {worst} of the largest"
    top = expected.topk(2, dim=-1)
    is_clear = (top.values[:, 0] - top.values[:, 1]) > 1e-3
    assert torch.equal(actual.argmax(-1)[is_clear], top.indices[is_clear, 0])


def is_compiled(loaded: LoadedModel) -> bool:
    assert isinstance(loaded.decoder, LeanDecoder)
    return loaded.decoder.has_compiled_operators


@pytest.mark.parametrize(("architecture", "settings"), _ARCHITECTURES, ids=str)
def test_trees_of_many_sessions_give_what_torchs_operators_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(compiled_step, "_most_rows", lambda: 64)
    pair, random = Pair.load(write_tiny_model(tmp_path, architecture, seed=4, **settings)), Random(8)
    assert [is_compiled(runner.case.loaded) for runner in pair.runners] == [True, False]
    for num_sessions, prefix_lens, sizes in [
        (1, [0], [1]),
        (1, [17], [1]),
        (1, [70], [40]),
        (3, [1, 15, 16], [1, 6, 12]),
        (9, [0, 1, 2, 5, 31, 33, 3, 64, 4], [1, 2, 3, 4, 5, 6, 7, 8, 4]),
    ]:
        texts = [
            pair.texts(random_tokens(random, length), scatter=random if place % 2 else None)
            for place, length in zip(range(num_sessions), prefix_lens, strict=True)
        ]
        trees = [random_tree(random, size - 1) for size in sizes]
        logits = [
            runner.forward.run([runner.tree(text[one], tree) for text, tree in zip(texts, trees, strict=True)])
            for one, runner in enumerate(pair.runners)
        ]
        agree(*logits)
        for text in texts:
            for runner, own in zip(pair.runners, text, strict=True):
                runner.cache.release(own.seq)
    caches = [runner.cache.storage for runner in pair.runners]
    torch.testing.assert_close(caches[0], caches[1], rtol=0, atol=1e-4)


def test_a_tree_grown_in_two_forwards_and_a_shared_prefix_are_seen(tmp_path: Path) -> None:
    pair, random = Pair.load(write_tiny_model(tmp_path, seed=2)), Random(3)
    tokens = random_tokens(random, 23)
    hashes = [bytes([place]) for place in range(5)]
    outputs = []
    for one, runner in enumerate(pair.runners):
        first = pair.texts(tokens)[one]
        runner.cache.publish(first.seq, hashes)
        second = Text(runner.cache.new_sequence(), tokens[:20])
        runner.cache.start_with(second.seq, hashes)
        assert second.seq.cached_len == 20
        runner.forward.run([runner.chain(first, [5, 6]), runner.chain(second, [9])])
        rows = [
            SequenceRows(first.seq, [7, 8, 9], [24, 25, 24], [0, 2, -1], [True] * 3),  # below rows in flight
            SequenceRows(second.seq, [11], [21], [0], [True]),
        ]
        outputs.append(runner.forward.run(rows))
    agree(*outputs)


def test_features_and_the_heads_input_are_what_torchs_operators_make_them(tmp_path: Path) -> None:
    pair, random = Pair.load(write_tiny_model(tmp_path, num_hidden_layers=3)), Random(3)
    texts, tree = pair.texts(random_tokens(random, 13)), random_tree(random, 7)
    read, changed = [], []
    for runner, text in zip(pair.runners, texts, strict=True):
        tap = runner.case.loaded.state_tap()
        rows = runner.tree(text, tree)
        some = SequenceRows(rows.seq, rows.token_ids, rows.positions, rows.parents, [True, False] * 4)
        read.append(runner.forward.run_and_read([some], tap, [1, 2, 3]))
        runner.cache.rollback(text.seq)
        changed.append(runner.forward.run([rows], lambda states: states.flip(-1)))
    agree(read[0].logits, read[1].logits)
    assert read[0].states.shape == (4, 4, 32)
    torch.testing.assert_close(read[0].states, read[1].states, rtol=0, atol=1e-4)
    agree(*changed)


def test_a_stack_of_models_is_compiled_and_says_what_each_says(tmp_path: Path) -> None:
    models = [load_model(write_tiny_model(tmp_path / str(seed), seed=seed), "fp16_packed") for seed in (1, 2, 3)]
    joint = stack(models)
    assert joint is not None
    assert is_compiled(joint)
    outputs = []
    for loaded in (joint, *models):
        random, runner = Random(7), Case(None, loaded).runner()
        text = runner.prefilled(random_tokens(random, 9))
        outputs.append(runner.forward.run([runner.tree(text, random_tree(random, 6))]))
    agree(outputs[0], torch.cat(outputs[1:], dim=-1))


def test_long_chunks_keep_to_torchs_operators_and_trees_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model(write_tiny_model(tmp_path), "fp16_packed")
    cache = loaded.new_cache(max_tokens=400)
    forward, seq = PackedForward(loaded, cache), cache.new_sequence()
    taken = []
    for kind in (CompiledStep, LeanStep):
        plain = kind.attend

        def attend(self: Any, *arguments: Any, plain: Any = plain, kind: Any = kind) -> torch.Tensor:
            taken.append(kind)
            return plain(self, *arguments)  # type: ignore[no-any-return]

        monkeypatch.setattr(kind, "attend", attend)
    for size, expected in [(200, LeanStep), (1, CompiledStep), (12, CompiledStep)]:
        taken.clear()
        chain = range(size)
        forward.run([SequenceRows(seq, [5] * size, chain, range(-1, size - 1), [False] * (size - 1) + [True])])
        cache.commit(seq, range(size))
        assert set(taken) == {expected}


def test_without_numba_or_with_unpacked_weights_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_model(tmp_path)
    assert not is_compiled(load_model(folder, "float32"))
    monkeypatch.setattr(compiled, "is_available", lambda: False)
    assert not is_compiled(load_model(folder, "fp16_packed"))


def test_other_types_of_numbers_are_not_compiled(tmp_path: Path) -> None:
    loaded = load_model(write_tiny_model(tmp_path), "float32")
    assert CompiledLayers.of([loaded.model.to(torch.bfloat16)]) is None
