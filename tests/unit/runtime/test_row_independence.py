"""What a row says depends on its own path: not on who runs beside it, nor on where its sequence lies in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch

from specgrove.runtime.forward import SequenceRows
from specgrove.runtime.loading import LoadedModel, load_model, stack
from specgrove.tree import TokenTree
from support.forward_cases import BLOCK_SIZE, Case, Runner, Text, random_tokens, random_tree
from support.tiny_models import write_tiny_model

# The order of a sum may follow the shape of the batch; where activations are rounded, one may fall to the other
# side, and few rows are rounded by other code than many.
_ROUNDING = {"float32": 1e-5, "fp16_packed": 1e-5, "int8_packed": 2e-3, "two as one": 1e-5}
_PREFIX_LENS = (1, 3, 17, 40, 41, 130, 9, 64)
_KINDS = [*_ROUNDING]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    def loaded(weights: str, seed: int = 1) -> LoadedModel:
        folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=seed, has_tokenizer=False)
        return load_model(folder, weights, decoder="lean")

    joint = stack([loaded("fp16_packed"), loaded("fp16_packed", seed=2)])
    assert joint is not None
    return {"two as one": joint, **{weights: loaded(weights) for weights in _KINDS[:3]}}


def crowd_of(loaded: LoadedModel, *, is_scattered: bool) -> tuple[Runner, list[Text]]:
    """Sequences of all lengths. Scattered ones took their blocks in turns, a few at a time, among ones that left."""
    random = Random(5)
    runner = Case(None, loaded).runner(num_blocks=240)
    tokens = [random_tokens(random, length) for length in _PREFIX_LENS]
    if not is_scattered:
        return runner, [runner.prefilled(one) for one in tokens]
    texts = [Text(runner.cache.new_sequence()) for _ in tokens]
    others = [runner.prefilled(random_tokens(random, BLOCK_SIZE)) for _ in range(40)]
    for place in range(0, max(_PREFIX_LENS), 7):
        for text, whole in zip(texts, tokens, strict=True):
            chunk = whole[place : place + 7]
            if chunk:
                runner.forward.run([runner.chain(text, chunk)])
                runner.commit(text, chunk, range(len(chunk)))
        if others:
            runner.cache.release(others.pop(random.randrange(len(others))).seq)
    assert sum(not text.seq.is_contiguous for text in texts) >= 4
    return runner, texts


def rows_of(runner: Runner, texts: Sequence[Text], num_draft_nodes: Sequence[int]) -> list[SequenceRows]:
    random = Random(8)
    trees = [
        random_tree(random, count) if count else TokenTree((7 + place,), (-1,))
        for place, count in enumerate(num_draft_nodes)
    ]
    return [runner.tree(*pair) for pair in zip(texts, trees, strict=True)]


def logits_of(runner: Runner, batch: Sequence[SequenceRows]) -> torch.Tensor:
    logits = runner.forward.run(batch)
    for rows in batch:
        runner.cache.rollback(rows.seq)
    return logits


@pytest.mark.parametrize(
    "num_draft_nodes", [[0] * 8, [4] * 8, [0, 3, 0, 11, 0, 1, 30, 0]], ids=["plain", "trees", "mixed"]
)
@pytest.mark.parametrize("is_scattered", [False, True], ids=["in runs", "scattered"])
@pytest.mark.parametrize("kind", _KINDS)
def test_a_rows_logits_are_the_same_alone_and_in_company(
    models: dict[str, LoadedModel], kind: str, is_scattered: bool, num_draft_nodes: list[int]
) -> None:
    runner, texts = crowd_of(models[kind], is_scattered=is_scattered)
    batch = rows_of(runner, texts, num_draft_nodes)
    together = logits_of(runner, batch)
    alone = torch.cat([logits_of(runner, [rows]) for rows in batch])
    torch.testing.assert_close(together, alone, rtol=0, atol=_ROUNDING[kind])
    assert torch.equal(together.argmax(dim=-1), alone.argmax(dim=-1))


@pytest.mark.parametrize("kind", _KINDS)
def test_a_rows_logits_are_the_same_wherever_its_sequence_lies(models: dict[str, LoadedModel], kind: str) -> None:
    said = []
    for is_scattered in (False, True):
        runner, texts = crowd_of(models[kind], is_scattered=is_scattered)
        said.append(logits_of(runner, rows_of(runner, texts, [0, 3, 0, 11, 0, 1, 30, 0])))
    torch.testing.assert_close(said[0], said[1], rtol=0, atol=_ROUNDING[kind])


@pytest.mark.parametrize("is_scattered", [False, True], ids=["in runs", "scattered"])
@pytest.mark.parametrize("kind", _KINDS[:3])
def test_greedy_tokens_do_not_depend_on_company_or_trees(
    models: dict[str, LoadedModel], kind: str, is_scattered: bool
) -> None:
    """Each alone and plainly, against all at once below trees of right and wrong guesses that are committed."""
    num_tokens, random = 24, Random(3)
    runner, texts = crowd_of(models[kind], is_scattered=is_scattered)
    plain = [continued(runner, text, num_tokens) for text in texts]
    runner, texts = crowd_of(models[kind], is_scattered=is_scattered)
    starts = [len(text.tokens) for text in texts]
    last = [7 + place for place in range(len(texts))]  # the root: known, not yet cached
    while min(len(text.tokens) - start for text, start in zip(texts, starts, strict=True)) < num_tokens:
        trees = []
        for place, text in enumerate(texts):
            done = len(text.tokens) - starts[place]
            guesses = plain[place][done : done + random.randrange(4)]
            wrong = [(token + random.randrange(1, 90)) % 96 for token in guesses]
            right = tuple(range(1, 2 * len(guesses), 2))
            tokens = [token for pair in zip(guesses, wrong, strict=True) for token in pair]
            parents = [0 if depth == 0 else right[depth - 1] for depth in range(len(guesses)) for _ in range(2)]
            trees.append(TokenTree((last[place], *tokens), (-1, *parents)))
        batch = [runner.tree(*pair) for pair in zip(texts, trees, strict=True)]
        chosen = iter(runner.forward.run(batch).argmax(dim=-1).tolist())
        for place, (text, tree) in enumerate(zip(texts, trees, strict=True)):
            by_node = [next(chosen) for _ in range(tree.num_nodes)]
            path = [0]
            while True:
                token = by_node[path[-1]]
                child = [
                    n for n in range(1, tree.num_nodes) if tree.parents[n] == path[-1] and tree.token_ids[n] == token
                ]
                if not child:
                    break
                path.append(child[0])
            runner.commit(text, [tree.token_ids[node] for node in path], path)
            last[place] = by_node[path[-1]]
    for text, start, tokens in zip(texts, starts, plain, strict=True):
        assert text.tokens[start + 1 : start + num_tokens] == tokens[: num_tokens - 1]


def continued(runner: Runner, text: Text, num_tokens: int) -> list[int]:
    """The greedy tokens of a sequence that decodes alone."""
    token, tokens = 7 + [*_PREFIX_LENS].index(len(text.tokens)), []
    for _ in range(num_tokens):
        logits = runner.forward.run([runner.chain(text, [token])])
        runner.commit(text, [token], [0])
        token = int(logits.argmax())
        tokens.append(token)
    return tokens
