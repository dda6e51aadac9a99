"""The compiled way of few rows: what torch's operators say, for every shape of step, and it mixes with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from specgrove.runtime import few_rows
from specgrove.runtime.few_rows import FewRows
from specgrove.runtime.forward import PackedForward, SequenceRows
from specgrove.runtime.int8_linear import is_int8_supported
from specgrove.runtime.loading import LoadedModel, load_model, stack
from specgrove.runtime.state_tap import RewriteStates
from support.forward_cases import Case, Runner, random_tokens, random_tree
from support.tiny_models import write_tiny_model

pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(not is_int8_supported(), reason="needs a CPU with AVX512 VNNI and torch's fbgemm")
_TOLERANCE = 1e-3  # of the range of the logits


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def both_ways(folder: Path, num_models: int = 1, architecture: str = "llama", **settings: Any) -> list[LoadedModel]:
    """Random models of int8, compiled and not."""
    loaded = []
    for choice in ("auto", "off"):
        models = [
            load_model(
                write_tiny_model(folder / str(seed), architecture, seed=seed, **settings),
                "int8_packed",
                cpu_kernels=choice,
            )
            for seed in range(num_models)
        ]
        joint = models[0] if num_models == 1 else stack(models)
        assert joint is not None
        loaded.append(joint)
    return loaded


def runner_of(loaded: LoadedModel) -> Runner:
    return Case(None, loaded).runner()


def num_compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every forward that goes the compiled way."""
    calls, states = [], FewRows.states

    def counted(self: FewRows, token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(token_ids.shape[1])
        return states(self, token_ids, *rest)

    monkeypatch.setattr(FewRows, "states", counted)
    return calls


def assert_alike(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    spread = float(expected.max() - expected.min())
    assert float((actual - expected).abs().max()) <= _TOLERANCE * spread


@pytest.mark.parametrize("num_models", [1, 2, 3])
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("llama", {}),
        ("qwen2", {}),  # with biases
        ("llama", {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 1, "intermediate_size": 112}),
        ("llama", {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 100}),
    ],
)
def test_trees_of_several_sessions_say_what_they_say_in_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, settings: dict[str, Any], num_models: int
) -> None:
    models, calls = both_ways(tmp_path, num_models, architecture, **settings), num_compiled(monkeypatch)
    outputs: list[list[torch.Tensor]] = []
    for loaded in models:
        random, runner, found = Random(7), runner_of(loaded), []
        texts = [runner.prefilled(random_tokens(random, count)) for count in (0, 4, 21, 9)]
        first = random_tree(random, 6, depth_bias=1.0)
        found.append(runner.forward.run([runner.tree(texts[1], first)]))
        runner.commit(texts[1], first.token_ids[:2], [0, 1])
        for sizes in ((0,), (3, 8, 0, 1), (1, 0, 2), (12,)):
            trees = [random_tree(random, size) for size in sizes]
            pairs = list(zip(texts, trees, strict=False))
            found.append(runner.forward.run([runner.tree(*pair) for pair in pairs]))
            for text, tree in pairs:
                runner.commit(text, tree.token_ids[:1], [0])
        outputs.append(found)
    assert max(calls) >= 12
    for actual, expected in zip(*outputs, strict=True):
        assert_alike(actual, expected)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 65])
def test_any_number_of_rows_up_to_the_bound_and_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    models, calls, outputs = both_ways(tmp_path), num_compiled(monkeypatch), []
    for loaded in models:
        runner = runner_of(loaded)
        text = runner.prefilled(random_tokens(Random(1), 5))
        tokens = random_tokens(Random(2), num_rows)
        rows = SequenceRows(text.seq, tokens, [5] * num_rows, [-1] * num_rows, [True] * num_rows)
        outputs.append(runner.forward.run([rows]))
    assert_alike(*outputs)
    assert (num_rows in calls) == (num_rows <= few_rows.MOST_ROWS)


def test_threads_lower_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [loaded, _], calls = both_ways(tmp_path), num_compiled(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    runner = runner_of(loaded)
    runner.prefilled(random_tokens(Random(1), few_rows.LEAST_ROWS + 1))
    runner.prefilled(random_tokens(Random(1), few_rows.LEAST_ROWS))
    assert calls == [few_rows.LEAST_ROWS]


def test_only_rows_that_are_asked_for_come_back(tmp_path: Path) -> None:
    outputs = []
    for loaded in both_ways(tmp_path, 2):
        runner = runner_of(loaded)
        texts = [runner.prefilled(random_tokens(Random(seed), 3 + seed)) for seed in (1, 2)]
        batch = [
            SequenceRows(
                text.seq, [5, 6, 7], range(len(text.tokens), len(text.tokens) + 3), (-1, 0, 1), (False, True, True)
            )
            for text in texts
        ]
        first = runner.forward.run(batch)
        for text in texts:
            runner.commit(text, [5, 6, 7], range(3))
        # The rows nobody asked about have left their keys.
        last = runner.forward.run([runner.chain(text, [9]) for text in texts])
        outputs.append(torch.cat([first, last]))
    assert_alike(*outputs)


def test_slots_may_lie_anywhere(tmp_path: Path) -> None:
    outputs = []
    for loaded in both_ways(tmp_path):
        runner, random = runner_of(loaded), Random(3)
        texts = [runner.prefilled(random_tokens(random, 3)) for _ in range(3)]
        for _ in range(6):  # by turns, each takes blocks that break the others' runs
            for text in texts:
                tokens = random_tokens(random, 5)
                runner.forward.run([runner.chain(text, tokens)])
                runner.commit(text, tokens, range(5))
        scattered = [text.seq for text in texts]
        for seq in scattered:  # as after a cache that has filled
            blocks = seq.block_table
            order = [*range(1, len(blocks), 2), *range(0, len(blocks), 2)]
            size, storage = runner.cache.block_size, runner.cache.storage
            moved = torch.cat(
                [storage[:, :, blocks[at] * size : (blocks[at] + 1) * size] for at in range(len(blocks))], 2
            )
            seq.block_table = [blocks[at] for at in order]
            seq.is_contiguous = False
            for place, block in enumerate(seq.block_table):
                storage[:, :, block * size : (block + 1) * size] = moved[:, :, place * size : (place + 1) * size]
        trees = [random_tree(random, 4) for _ in texts]
        outputs.append(runner.forward.run([runner.tree(*pair) for pair in zip(texts, trees, strict=True)]))
    assert_alike(*outputs)


def test_a_row_is_bit_for_bit_the_same_beside_others(tmp_path: Path) -> None:
    loaded = both_ways(tmp_path, 2)[0]
    runner, random = runner_of(loaded), Random(4)
    texts = [runner.prefilled(random_tokens(random, count)) for count in (7, 11, 2)]
    together = runner.forward.run([runner.chain(text, [8]) for text in texts])
    for text in texts:
        runner.cache.rollback(text.seq)
    alone = [runner.forward.run([runner.chain(text, [8])]) for text in texts]
    assert torch.equal(together, torch.cat(alone))


def test_states_on_their_way_into_the_head_can_be_changed(tmp_path: Path) -> None:
    def only_the_second(states: torch.Tensor) -> torch.Tensor:
        return states * torch.tensor([0.0, 1.0])[:, None, None]

    def after(rewrite: RewriteStates | None) -> torch.Tensor:
        cache = loaded.new_cache(max_tokens=64)
        rows = SequenceRows(cache.new_sequence(), [5, 6], range(2), range(-1, 1), [True, True])
        return PackedForward(loaded, cache).run([rows], rewrite)

    loaded = both_ways(tmp_path, 2)[0]
    changed, plain = after(only_the_second), after(None)
    size = loaded.vocab_size
    assert not changed[:, :size].any()
    assert torch.equal(changed[:, size:], plain[:, size:])


def test_a_head_that_is_replaced_is_the_one_that_reads(tmp_path: Path) -> None:
    outputs = []
    for loaded in both_ways(tmp_path):
        head = torch.randn(40, loaded.hidden_size, generator=torch.Generator().manual_seed(1))
        loaded.replace_head(head)
        runner = runner_of(loaded)
        outputs.append(runner.forward.run([runner.chain(runner.prefilled([]), [5, 6])]))
    assert outputs[0].shape == (2, 40)
    assert_alike(*outputs)


def test_states_can_be_read(tmp_path: Path) -> None:
    outputs = []
    for loaded in both_ways(tmp_path):
        cache = loaded.new_cache(max_tokens=64)
        rows = SequenceRows(cache.new_sequence(), [5, 6], range(2), range(-1, 1), [True, True])
        outputs.append(PackedForward(loaded, cache).run_and_read([rows], loaded.state_tap(), [1]).states)
    assert_alike(*outputs)


def test_ids_without_an_embedding_are_refused(tmp_path: Path) -> None:
    runner = runner_of(both_ways(tmp_path)[0])
    text = runner.prefilled([5])
    for token_id in (-1, runner.case.loaded.vocab_size):
        with pytest.raises(IndexError, match="token ids must be in"):
            runner.forward.run([runner.chain(text, [token_id])])
