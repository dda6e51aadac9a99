"""Runs whole engines on a tiny model in Triton's interpreter and compares every token with plain torch.

A process of its own, started with `TRITON_INTERPRET=1`: Triton reads it while it is imported. Asserts, and prints what
it ran.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

from specgrove.runtime.loading import LoadedModel, load_model
from specgrove.sampling.params import SamplingParams
from specgrove_kernels.backend import triton_kernels
from support.engine_stand import InProcessDrafter, Stand, knowing_trees, running_stand
from support.paged_models import ReplayingCapture
from support.tiny_models import VOCAB_SIZE, write_tiny_model

LENGTHS = (1, 3, 4, 5, 21)  # prefixes before, at and after the edges of blocks of 4
MAX_TOKENS = 8
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=0.9, seed=2**63 + 5),
    "top-k": SamplingParams(temperature=1.3, top_k=20, seed=3),
}


def prompts() -> list[list[int]]:
    random = Random(7)
    return [[random.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


@contextmanager
def answered(
    loaded: LoadedModel, sampling: SamplingParams, drafters: Sequence[InProcessDrafter] = (), **limits: int
) -> Iterator[tuple[list[list[int]], Stand]]:
    """The tokens of all prompts, run together, and the engine that made them."""
    with running_stand(loaded, *drafters, **limits) as stand:
        running = [stand.start(prompt, MAX_TOKENS, sampling=sampling) for prompt in prompts()]
        yield [one.answer().token_ids for one in running], stand


def compare(
    name: str, plain: LoadedModel, interpreted: LoadedModel, sampling: SamplingParams, *, is_drafted: bool = True
) -> None:
    with answered(plain, sampling) as (expected, _):
        pass
    truths = [[*prompt, *output] for prompt, output in zip(prompts(), expected, strict=True)]
    drafters = [InProcessDrafter(knowing_trees(truths, right_len=2))] if is_drafted else []
    with answered(interpreted, sampling, drafters) as (tokens, stand):
        assert tokens == expected, (name, tokens, expected)
        stand.assert_empty()
    print(f"{name}: {sum(map(len, tokens))} tokens equal")


def compare_preempted(plain: LoadedModel, interpreted: LoadedModel) -> None:
    with answered(plain, SAMPLINGS["sampled"]) as (expected, _):
        pass
    with answered(interpreted, SAMPLINGS["sampled"], kv_tokens=40, max_step_rows=9) as (tokens, stand):
        assert tokens == expected, (tokens, expected)
        assert stand.num_preemptions > 0
    print("preemption: tokens equal")


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for architecture, decoder in (("llama", "lean"), ("gpt2", "transformers")):
            source = write_tiny_model(Path(folder) / architecture, architecture, seed=1)
            plain = load_model(source, "float32", decoder=decoder)
            interpreted = load_model(source, "float32", decoder=decoder, attention="triton")
            assert interpreted.paged is not None
            assert interpreted.paged.kernels == triton_kernels()
            capture = ReplayingCapture()
            recorded = replace(interpreted, paged=replace(interpreted.paged, new_capture=lambda kept=capture: kept))
            names = SAMPLINGS if decoder == "lean" else ["sampled"]
            for name in names:
                compare(f"{architecture}, {name}", plain, interpreted, SAMPLINGS[name])
            compare(f"{architecture}, recorded", plain, recorded, SAMPLINGS["sampled"], is_drafted=False)
            assert capture.num_replayed > 0
            if decoder == "lean":
                compare_preempted(plain, interpreted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
