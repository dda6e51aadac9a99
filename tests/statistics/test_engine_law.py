"""Tokens that the engine samples have the target's own law, with a drafter that drafts at random and always."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scipy import stats

from specgrove.runtime.loading import load_model
from specgrove.sampling.params import SamplingParams
from specgrove.sampling.target_choice import process_logits
from support.engine_stand import InProcessDrafter, random_trees, running_stand
from support.tiny_models import own_logits, own_model, write_tiny_model

VOCAB_SIZE = 8
PROMPT = [5, 3, 6]
NUM_SEEDS = 600
LEVEL = 1e-4


def _pair_law(folder: Path, sampling: SamplingParams) -> torch.Tensor:  # float32 [V * V]
    """The law of the first two tokens, by `transformers`."""
    own = own_model(folder)
    first = process_logits(own_logits(own, PROMPT)[-1:], sampling).softmax(-1)[0]
    rows = [
        process_logits(own_logits(own, [*PROMPT, token])[-1:], sampling).softmax(-1)[0] for token in range(VOCAB_SIZE)
    ]
    return (first.unsqueeze(1) * torch.stack(rows)).flatten()


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(temperature=1.0), SamplingParams(temperature=0.8, top_k=6, top_p=0.95)],
    ids=["1.0", "cut"],
)
def test_sampled_pairs_have_the_law_of_the_target(tmp_path: Path, sampling: SamplingParams) -> None:
    folder = write_tiny_model(
        tmp_path, vocab_size=VOCAB_SIZE, seed=3, has_tokenizer=False, hidden_size=16, num_hidden_layers=1
    )
    law = _pair_law(folder, sampling)
    counts = torch.zeros(VOCAB_SIZE * VOCAB_SIZE)
    num_accepted = 0
    drafter = InProcessDrafter(random_trees(VOCAB_SIZE, seed=1))
    with running_stand(load_model(folder, "float32"), drafter, kv_tokens=2048, max_depth=2) as stand:
        running = [
            stand.start(
                PROMPT, 3, sampling=SamplingParams(sampling.temperature, sampling.top_p, sampling.top_k, seed=seed)
            )
            for seed in range(NUM_SEEDS)
        ]
        for one in running:
            answer = one.answer()
            counts[answer.token_ids[0] * VOCAB_SIZE + answer.token_ids[1]] += 1
            num_accepted += answer.stats.num_accepted_tokens
    assert num_accepted > NUM_SEEDS / 8  # the walk was really used
    assert not counts[law == 0].any()
    likely = law * NUM_SEEDS >= 5
    observed = [*counts[likely].tolist(), float(counts[~likely].sum())]
    expected = [*(law[likely] * NUM_SEEDS).tolist(), float(law[~likely].sum() * NUM_SEEDS)]
    total = sum(expected)
    if expected[-1] < 5:  # too few to be a class of its own
        rest = (observed.pop(), expected.pop())
        observed[-1] += rest[0]
        expected[-1] += rest[1]
    assert len(expected) >= 8
    assert stats.chisquare(observed, [share * NUM_SEEDS / total for share in expected]).pvalue > LEVEL
