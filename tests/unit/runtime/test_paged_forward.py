"""The forward over the paged kernels (their references here): logits of the plain one, eager, padded, replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from specgrove.runtime.forward import PackedForward
from specgrove.runtime.loading import LoadedModel, load_model, stack
from specgrove_kernels.backend import reference_kernels
from specgrove_kernels.paged_batch import PagedBatch
from support.forward_cases import BLOCK_SIZE, Case, Runner, assert_close, random_tokens, random_tree
from support.paged_models import ReplayingCapture, paged
from support.tiny_models import write_tiny_model

MODELS = [("llama", "lean"), ("qwen2", "lean"), ("llama", "transformers"), ("gpt2", "transformers")]


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    architecture, decoder = request.param
    folder = write_tiny_model(tmp_path_factory.mktemp(architecture), architecture, has_tokenizer=False)
    return load_model(folder, "float32", decoder=decoder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_tiny_model(tmp_path_factory.mktemp("llama"), has_tokenizer=False), "float32")


def runner_of(loaded: LoadedModel) -> Runner:
    return Case(None, loaded).runner()


def several_steps(runner: Runner, *, seed: int = 0, num_steps: int = 5) -> list[torch.Tensor]:
    """Trees of changing shapes over prefixes at the edges of blocks, paths committed in between."""
    random = Random(seed)
    texts = [runner.prefilled(random_tokens(random, size)) for size in (0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, 9)]
    outputs = []
    for step in range(num_steps):
        trees = [random_tree(random, random.choice([0, 0, 2, 7])) for _ in texts]
        pairs = list(zip(texts, trees, strict=True))[step % 3 :]
        outputs.append(runner.forward.run([runner.tree(*pair) for pair in pairs]))
        for text, tree in pairs:
            path = [0, *tree.node_path(random.randrange(tree.num_nodes))]
            runner.commit(text, [tree.token_ids[node] for node in path], path)
    return outputs


@pytest.mark.parametrize("is_recorded", [False, True])
def test_trees_of_many_sessions_have_the_logits_of_the_plain_forward(loaded: LoadedModel, is_recorded: bool) -> None:
    capture = ReplayingCapture()
    ours = several_steps(runner_of(paged(loaded, capture=capture if is_recorded else None)), num_steps=16)
    for actual, expected in zip(ours, several_steps(runner_of(loaded), num_steps=16), strict=True):
        assert_close(actual, expected)
    assert bool(capture.num_replayed) == is_recorded


def test_what_padding_rows_hold_changes_no_result(llama: LoadedModel) -> None:
    """Rows, sequences and tiles that fill a bucket: their results are replaced by nonsense on the way."""
    right = reference_kernels()

    def poisoned(query: torch.Tensor, storage: torch.Tensor, batch: PagedBatch, **options: float) -> torch.Tensor:
        mixed = right.paged_tree_attention(query, storage, batch, **options)  # type: ignore[arg-type]
        if batch.is_padded:
            mixed[int(batch.row_starts[-1]) :] = float("nan")
        return mixed

    capture, kernels = ReplayingCapture(), replace(right, paged_tree_attention=poisoned)
    for actual, expected in zip(
        several_steps(runner_of(paged(llama, kernels=kernels, capture=capture)), seed=3, num_steps=16),
        several_steps(runner_of(llama), seed=3, num_steps=16),
        strict=True,
    ):
        assert_close(actual, expected)
    assert capture.num_replayed


def test_padding_rows_write_no_slot(llama: LoadedModel) -> None:
    runner = runner_of(paged(llama, capture=ReplayingCapture()))
    text = runner.prefilled(random_tokens(Random(1), 5))
    tree = random_tree(Random(2), 2)  # three rows, in a bucket of four
    for _ in range(4):
        runner.cache.storage[:, :, 8:] = 7.0
        runner.forward.run([runner.tree(text, tree)])
        runner.cache.rollback(text.seq)
        assert (runner.cache.storage[:, :, 8:] == 7.0).all()
        assert (runner.cache.storage[:, :, 5:8] != 7.0).any()


def test_replayed_steps_leave_earlier_results_alone(llama: LoadedModel) -> None:
    runner = runner_of(paged(llama, capture=ReplayingCapture()))
    text = runner.prefilled(random_tokens(Random(1), 5))
    kept = []
    for token in (5, 6, 7, 8):
        kept.append(runner.forward.run([runner.chain(text, [token])]))
        runner.cache.rollback(text.seq)
    fresh = runner_of(llama)
    text = fresh.prefilled(random_tokens(Random(1), 5))
    for token, logits in zip((5, 6, 7, 8), kept, strict=True):
        assert_close(logits, fresh.forward.run([fresh.chain(text, [token])]))
        fresh.cache.rollback(text.seq)


def test_prefill_is_not_recorded(llama: LoadedModel) -> None:
    capture = ReplayingCapture()
    runner = runner_of(paged(llama, capture=capture))
    for _ in range(4):
        text = runner.prefilled([])
        rows = runner.chain(text, random_tokens(Random(1), 8), wants=False)
        runner.forward.run([rows])
    assert capture.num_recorded == 0


@pytest.mark.parametrize("is_recorded", [False, True])
def test_rows_in_the_middle_can_be_all_that_is_wanted(llama: LoadedModel, is_recorded: bool) -> None:
    capture = ReplayingCapture()
    runner, plain = runner_of(paged(llama, capture=capture if is_recorded else None)), runner_of(llama)
    for _ in range(4):
        logits = []
        for each in (runner, plain):
            text = each.prefilled(random_tokens(Random(1), 6))
            rows = each.chain(text, [7, 8, 9, 10])
            logits.append(each.forward.run([replace(rows, wants_logits=[False, True, True, False])]))
            each.cache.release(text.seq)
        assert_close(*logits)
    assert bool(capture.num_replayed) == is_recorded


@pytest.mark.parametrize("is_recorded", [False, True])
def test_states_are_read_beside_the_logits(loaded: LoadedModel, is_recorded: bool) -> None:
    ours = paged(loaded, capture=ReplayingCapture() if is_recorded else None)
    for _ in range(4):
        read = []
        for model in (ours, loaded):
            runner = runner_of(model)
            text = runner.prefilled(random_tokens(Random(4), 6))
            tree = random_tree(Random(5), 4)
            read.append(runner.forward.run_and_read([runner.tree(text, tree)], model.state_tap(), (1,)))
        assert_close(read[0].logits, read[1].logits)
        assert_close(read[0].states, read[1].states)


def test_a_stack_of_models_attends_as_one(tmp_path: Path) -> None:
    models = [load_model(write_tiny_model(tmp_path / str(seed), seed=seed), "float32") for seed in (1, 2)]
    joint = stack([paged(model, capture=ReplayingCapture()) for model in models])
    plain = stack(models)
    assert joint is not None
    assert plain is not None
    for actual, expected in zip(
        several_steps(runner_of(joint), num_steps=16), several_steps(runner_of(plain), num_steps=16), strict=True
    ):
        assert_close(actual, expected)


def test_states_changed_before_the_head_run_eagerly(llama: LoadedModel) -> None:
    capture = ReplayingCapture()
    runner = runner_of(paged(llama, capture=capture))
    text = runner.prefilled(random_tokens(Random(1), 6))
    halve: Callable[[torch.Tensor], torch.Tensor] = lambda states: states * 0.5  # noqa: E731
    for _ in range(4):
        whole = runner.forward.run([runner.chain(text, [5])])
        runner.cache.rollback(text.seq)
        assert_close(runner.forward.run([runner.chain(text, [5])], halve), whole * 0.5)
        runner.cache.rollback(text.seq)
    assert capture.num_recorded == 1


def test_accepted_paths_of_all_sessions_move_in_one_launch(llama: LoadedModel) -> None:
    right, launches = reference_kernels(), []

    def counted(storage: torch.Tensor, source: torch.Tensor, target: torch.Tensor, starts: torch.Tensor) -> None:
        launches.append(starts.tolist())
        right.compact_kv(storage, source, target, starts)

    runner = runner_of(paged(llama, kernels=replace(right, compact_kv=counted)))
    random = Random(1)
    texts = [runner.prefilled(random_tokens(random, size)) for size in (3, 6)]
    trees = [random_tree(random, 6, depth_bias=0.0) for _ in texts]
    runner.forward.run([runner.tree(*pair) for pair in zip(texts, trees, strict=True)])
    for text in texts:
        runner.cache.commit(text.seq, [0, 4, 6])
    assert launches == []
    runner.forward.run([runner.chain(text, [5]) for text in texts])
    assert launches == [[0, 2, 4]]
    runner.forward.run([runner.chain(text, [6]) for text in texts])
    assert len(launches) == 1


def test_a_sequence_that_takes_the_blocks_of_a_released_one_is_not_written_over(llama: LoadedModel) -> None:
    """The path of the first waits to be moved when its blocks go to the second."""
    outputs = []
    for model in (paged(llama), llama):
        cache = model.new_cache(max_tokens=3 * BLOCK_SIZE, block_size=BLOCK_SIZE)
        runner = Runner(Case(None, model), cache, PackedForward(model, cache))
        text, tree = runner.prefilled(random_tokens(Random(1), 3)), random_tree(Random(3), 6, depth_bias=0.0)
        runner.forward.run([runner.tree(text, tree)])
        cache.commit(text.seq, [0, 5])
        cache.release(text.seq)
        other = runner.prefilled(random_tokens(Random(2), 11))
        outputs.append(runner.forward.run([runner.chain(other, [9])]))
    assert_close(*outputs)
