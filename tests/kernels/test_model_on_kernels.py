"""A tiny model through the packed forward on the Triton kernels, interpreted; engines run in a slow test."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from specgrove.runtime.loading import load_model
from specgrove_kernels.backend import has_triton
from support.forward_cases import Case, assert_close, random_tokens, random_tree
from support.tiny_models import write_tiny_model

if has_triton():

    @pytest.mark.parametrize("decoder", ["lean", "transformers"])
    def test_trees_have_the_logits_of_plain_torch(tmp_path: Path, decoder: str) -> None:
        folder = write_tiny_model(tmp_path, has_tokenizer=False)
        outputs: list[torch.Tensor] = []
        for attention in ("triton", "reference"):
            loaded = load_model(folder, "float32", decoder=decoder, attention=attention)
            assert (loaded.paged is not None) == (attention == "triton")
            runner, random = Case(None, loaded).runner(), Random(3)
            texts = [runner.prefilled(random_tokens(random, size)) for size in (0, 3, 9)]
            for count in (6, 2):
                trees = [random_tree(random, count) for _ in texts]
                outputs.append(runner.forward.run([runner.tree(*pair) for pair in zip(texts, trees, strict=True)]))
                for text, tree in zip(texts, trees, strict=True):
                    path = [0, *tree.node_path(tree.num_nodes - 1)]
                    runner.commit(text, [tree.token_ids[node] for node in path], path)
        assert_close(outputs[0], outputs[2])
        assert_close(outputs[1], outputs[3])
