"""A tiny target and SSMs that agree with it now and then: the target itself with noise in its weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch

from specgrove.runtime.loading import LoadedModel
from specgrove.sampling.params import SamplingParams
from specgrove_bench.paper.loop import Loop
from specgrove_bench.paper.speculator import SsmPool
from specgrove_bench.paper.story import Ask, Trace
from specgrove_bench.paper.target import TargetBatch
from specgrove_bench.paper.ways import Way
from specgrove_bench.prompts import BenchPrompt
from support.tiny_models import EOS_ID, VOCAB_SIZE, own_model

MAX_TOKENS = 16
MAX_NODES = 32


def write_noisy_copy(target: Path, folder: Path, *, noise: float, seed: int) -> Path:
    """`target` with every weight moved by `noise` times its own scale: a draft model of a quality to choose."""
    model = own_model(target)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * parameter.std() * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return folder


def make_prompts(count: int, *, seed: int = 0) -> list[BenchPrompt]:
    """Random prompts of different lengths, in two categories by turns."""
    random = Random(seed)
    return [
        BenchPrompt(
            ("even", "odd")[number % 2],
            tuple(random.randrange(3, VOCAB_SIZE) for _ in range(random.randint(2, 40))),
        )
        for number in range(count)
    ]


def make_asks(prompts: Sequence[BenchPrompt], temperature: float, *, seed: int = 5) -> list[Ask]:
    return [
        Ask(prompt, SamplingParams(temperature=temperature, seed=seed + place), MAX_TOKENS, frozenset({EOS_ID}))
        for place, prompt in enumerate(prompts)
    ]


def make_batch(target: LoadedModel, prompts: Sequence[BenchPrompt], pool: SsmPool | None = None) -> TargetBatch:
    layers = pool.layout.layers if pool is not None else ()
    return TargetBatch(
        target,
        [prompt.token_ids for prompt in prompts],
        max_tokens=MAX_TOKENS,
        max_nodes=MAX_NODES,
        feature_layers=layers,
    )


def write_traces(target: LoadedModel, batch: TargetBatch, asks: Sequence[Ask], way: Way) -> list[Trace]:
    """The target's answers without any draft."""
    return [played.trace for played in Loop(batch, asks, way, target.vocab_size).play(None)]
