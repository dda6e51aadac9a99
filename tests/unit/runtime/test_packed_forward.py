"""The packed forward says what the model itself says on every path, in every company, at every edge of a block."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from specgrove.runtime.forward import SequenceRows
from specgrove.runtime.kv_cache import CachedSequence, OutOfBlocks
from specgrove.runtime.loading import load_model
from specgrove.tree import TokenTree
from support.forward_cases import BLOCK_SIZE, Case, Text, assert_close, random_tokens, random_tree
from support.tiny_models import CONFIGS, own_logits, own_model, write_tiny_model

# Llama-shaped models run by their own code too, which is what all others do.
CASES = {**{name: (name, "auto") for name in CONFIGS}, "llama by transformers": ("llama", "transformers")}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    loaded = {}
    for case, (architecture, decoder) in CASES.items():
        folder: Path = write_tiny_model(tmp_path_factory.mktemp(architecture), architecture, has_tokenizer=False)
        loaded[case] = Case(own_model(folder), load_model(folder, "float32", decoder=decoder))
    return loaded


@pytest.fixture(scope="module")
def llama(cases: dict[str, Case]) -> Case:
    return cases["llama"]


@pytest.mark.parametrize("architecture", CASES)
@pytest.mark.parametrize("num_draft_nodes", [1, 7, 12])
def test_every_node_has_the_logits_of_its_path(cases: dict[str, Case], architecture: str, num_draft_nodes: int) -> None:
    random = Random(num_draft_nodes)
    runner = cases[architecture].runner()
    text = runner.prefilled(random_tokens(random, 9))
    tree = random_tree(random, num_draft_nodes)
    assert_close(runner.forward.run([runner.tree(text, tree)]), runner.expected(text, tree))


@pytest.mark.parametrize("prefix_len", [0, 1, *(BLOCK_SIZE * blocks + off for blocks in (1, 3) for off in (-1, 0, 1))])
@pytest.mark.parametrize("architecture", ["llama", "llama by transformers", "mistral"])
def test_prefixes_at_the_edges_of_blocks(cases: dict[str, Case], architecture: str, prefix_len: int) -> None:
    random = Random(prefix_len)
    runner = cases[architecture].runner()
    text = runner.prefilled(random_tokens(random, prefix_len))
    tree = random_tree(random, 5)
    assert_close(runner.forward.run([runner.tree(text, tree)]), runner.expected(text, tree))


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_blocks_of_any_size(llama: Case, block_size: int) -> None:
    random = Random(block_size)
    runner = llama.runner(num_blocks=40, block_size=block_size)
    text = runner.prefilled(random_tokens(random, 11))
    tree = random_tree(random, 6)
    assert_close(runner.forward.run([runner.tree(text, tree)]), runner.expected(text, tree))


def test_a_tree_of_more_than_64_rows(llama: Case) -> None:
    random = Random(5)
    runner = llama.runner()
    text = runner.prefilled(random_tokens(random, 6))
    tree = random_tree(random, 99, depth_bias=0.3)
    assert_close(runner.forward.run([runner.tree(text, tree)]), runner.expected(text, tree))


@pytest.mark.parametrize("architecture", CASES)
def test_committing_a_path_continues_as_if_it_had_been_prefilled(cases: dict[str, Case], architecture: str) -> None:
    random = Random(11)
    runner = cases[architecture].runner()
    text = runner.prefilled(random_tokens(random, 6))
    for _ in range(4):
        tree = random_tree(random, 8)
        logits = runner.forward.run([runner.tree(text, tree)])
        assert_close(logits, runner.expected(text, tree))
        leaf = max(range(tree.num_nodes), key=lambda node: (tree.depths[node], node))
        path = [0, *tree.node_path(leaf)]
        runner.commit(text, [tree.token_ids[node] for node in path], path)
    chain = random_tokens(random, 3)
    assert_close(runner.forward.run([runner.chain(text, chain)]), own_logits(runner.case.own, text.tokens + chain)[-3:])


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
def test_prefill_decode_and_trees_share_a_forward(cases: dict[str, Case], architecture: str) -> None:
    random = Random(3)
    runner = cases[architecture].runner()
    prefilling, decoding, drafted, fresh = (runner.prefilled(random_tokens(random, size)) for size in (5, 9, 4, 0))
    chunk, step, tree, prompt = (
        random_tokens(random, 7),
        random_tokens(random, 1),
        random_tree(random, 9),
        random_tokens(random, 3),
    )
    logits = runner.forward.run(
        [
            runner.chain(prefilling, chunk, wants=False),
            runner.chain(decoding, step),
            runner.tree(drafted, tree),
            runner.chain(fresh, prompt),
        ]
    )
    assert runner.forward.num_forwards == 4
    own = runner.case.own
    expected = [
        own_logits(own, decoding.tokens + step)[-1:],
        runner.expected(drafted, tree),
        own_logits(own, prompt),
    ]
    assert_close(logits, torch.cat(expected))
    runner.commit(prefilling, chunk, range(7))
    assert_close(runner.forward.run([runner.chain(prefilling, step)]), own_logits(own, prefilling.tokens + step)[-1:])


def test_chunks_of_any_cut_make_one_prefill(llama: Case) -> None:
    random = Random(8)
    tokens = random_tokens(random, 23)
    for cut in (1, 4, 5, 22):
        runner = llama.runner()
        text = runner.prefilled(tokens[:cut])
        assert_close(runner.forward.run([runner.chain(text, tokens[cut:])]), own_logits(llama.own, tokens)[cut:])


def test_only_the_wanted_rows_come_back_in_packed_order(llama: Case) -> None:
    tokens = random_tokens(Random(1), 8)
    runner = llama.runner()
    text = Text(runner.cache.new_sequence())
    wants = [False, True, False, False, True, False, False, True]
    logits = runner.forward.run([SequenceRows(text.seq, tokens, range(8), range(-1, 7), wants)])
    assert_close(logits, own_logits(llama.own, tokens)[[1, 4, 7]])


def test_rows_may_be_added_below_rows_in_flight(llama: Case) -> None:
    """As a drafter grows its tree: level by level, each level a forward of its own, nothing committed between."""
    random = Random(21)
    runner = llama.runner()
    text = runner.prefilled(random_tokens(random, 7))
    tree = TokenTree((9, 10, 11, 12, 13, 14, 15), (-1, 0, 0, 1, 2, 3, 3))
    expected = runner.expected(text, tree)
    for level in range(4):
        nodes = [node for node in range(tree.num_nodes) if tree.depths[node] == level]
        rows = SequenceRows(
            text.seq,
            [tree.token_ids[node] for node in nodes],
            [len(text.tokens) + level] * len(nodes),
            [tree.parents[node] for node in nodes],
            [True] * len(nodes),
        )
        assert_close(runner.forward.run([rows]), expected[nodes])


def test_a_single_row_below_rows_in_flight_sees_its_own_branch_only(llama: Case) -> None:
    runner = llama.runner()
    text = runner.prefilled([5, 6, 7])
    runner.forward.run([SequenceRows(text.seq, [9, 10, 11], [3, 4, 4], [-1, 0, 0], [True] * 3)])
    logits = runner.forward.run([SequenceRows(text.seq, [12], [5], [2], [True])])
    assert_close(logits, own_logits(llama.own, [5, 6, 7, 9, 11, 12])[-1:])


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_block_tables_with_holes(cases: dict[str, Case], architecture: str) -> None:
    """Sequences that took their blocks in turns, one of which then went away."""
    random = Random(31)
    runner = cases[architecture].runner(num_blocks=32)
    crowd = [runner.prefilled(random_tokens(random, BLOCK_SIZE)) for _ in range(4)]
    for _ in range(3):
        for text in crowd:
            chunk = random_tokens(random, BLOCK_SIZE)
            runner.forward.run([runner.chain(text, chunk)])
            runner.commit(text, chunk, range(BLOCK_SIZE))
    runner.cache.release(crowd.pop(1).seq)
    late = runner.prefilled(random_tokens(random, 49))  # longer than any gap
    assert not late.seq.is_contiguous
    trees = [random_tree(random, 6) for _ in range(4)]
    texts = [*crowd, late]
    logits = runner.forward.run([runner.tree(text, tree) for text, tree in zip(texts, trees, strict=True)])
    expected = torch.cat([runner.expected(text, tree) for text, tree in zip(texts, trees, strict=True)])
    assert_close(logits, expected)
    path = [0, *trees[3].node_path(6)]
    runner.commit(late, [trees[3].token_ids[node] for node in path], path)
    assert_close(runner.forward.run([runner.chain(late, [8])]), own_logits(runner.case.own, [*late.tokens, 8])[-1:])


def test_out_of_blocks_leaves_the_others_as_they_were(llama: Case) -> None:
    random = Random(2)
    runner = llama.runner(num_blocks=5)
    text = runner.prefilled(random_tokens(random, 10))
    greedy = runner.prefilled([])
    tree = random_tree(random, 3)
    with pytest.raises(OutOfBlocks):
        runner.forward.run([runner.tree(text, tree), runner.chain(greedy, random_tokens(random, 9))])
    assert text.seq.num_in_flight == 0
    assert runner.forward.num_forwards == 1
    runner.cache.rollback(greedy.seq)
    assert_close(runner.forward.run([runner.tree(text, tree)]), runner.expected(text, tree))


def test_neighbours_do_not_move_a_row_beyond_rounding(llama: Case) -> None:
    random = Random(4)
    runner = llama.runner()
    texts = [runner.prefilled(random_tokens(random, size)) for size in (4, 9, 15, 22)]
    rows = [runner.chain(text, [7 + place]) for place, text in enumerate(texts)]
    together = runner.forward.run(rows)
    for text in texts:
        runner.cache.rollback(text.seq)
    alone = torch.cat([runner.forward.run([row]) for row in rows])
    assert_close(together, alone, 1e-4)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma2"])
def test_packed_weights_stay_close_to_float32(cases: dict[str, Case], architecture: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, architecture, has_tokenizer=False)
    packed = load_model(folder, "fp16_packed")
    assert packed.weights == "fp16_packed"
    random = Random(6)
    runner = Case(cases[architecture].own, packed).runner()
    text = runner.prefilled(random_tokens(random, 9))
    tree = random_tree(random, 8)
    assert_close(runner.forward.run([runner.tree(text, tree)]), runner.expected(text, tree), 0.05)


@pytest.mark.parametrize("field", ["token_ids", "positions", "parents", "wants_logits"])
def test_rows_with_columns_of_different_length_are_refused(llama: Case, field: str) -> None:
    columns = {"token_ids": [1, 2], "positions": [0, 1], "parents": [-1, 0], "wants_logits": [True, True]}
    columns[field] = columns[field][:1]
    with pytest.raises(ValueError, match="one entry for each row"):
        SequenceRows(CachedSequence(), **columns)  # type: ignore[arg-type]


def test_a_step_has_at_least_one_row() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SequenceRows(CachedSequence(), [], [], [], [])
