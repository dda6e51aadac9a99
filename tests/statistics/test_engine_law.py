"""Tokens that the engine samples have the target's own law, by every rule, with drafters that always draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

from specgrove.runtime.loading import load_model
from specgrove.sampling.params import SamplingParams, SpeculationOptions
from specgrove.sampling.rules import Rule
from specgrove.sampling.target_choice import process_logits
from support.engine_stand import InProcessDrafter, random_trees, running_stand
from support.lawful_drafts import flat_law, lawful_drafter, skewed_law
from support.penalty_reference import adjusted_by_hand
from support.tiny_models import own_logits, own_model, write_tiny_model

VOCAB_SIZE = 8
PROMPT = [5, 3, 6]
NUM_SEEDS = 600
LEVEL = 1e-4


def _pair_law(folder: Path, sampling: SamplingParams, forbidden: int | None = None) -> torch.Tensor:  # float32 [V * V]
    """The law of the first two tokens, by `transformers`; `forbidden` cannot be drawn."""
    own = own_model(folder)

    def law_after(tokens: list[int]) -> torch.Tensor:
        raw = own_logits(own, tokens)[-1].numpy()
        output = tokens[len(PROMPT) :]
        logits = torch.from_numpy(adjusted_by_hand(raw, sampling, PROMPT, output))[None]
        if forbidden is not None:
            logits[:, forbidden] = float("-inf")
        return process_logits(logits, sampling).softmax(-1)[0]

    rows = [law_after([*PROMPT, token]) for token in range(VOCAB_SIZE)]
    return (law_after(PROMPT).unsqueeze(1) * torch.stack(rows)).flatten()


def _drafters_of(kind: str) -> list[InProcessDrafter]:
    flat, skewed, other = flat_law(VOCAB_SIZE), skewed_law(VOCAB_SIZE, 0), skewed_law(VOCAB_SIZE, 2)
    kinds: dict[str, Callable[[], list[InProcessDrafter]]] = {
        "none": list,
        "random": lambda: [InProcessDrafter(random_trees(VOCAB_SIZE, seed=1))],
        "flat": lambda: [lawful_drafter([flat], (3, 2), seed=1)],
        "skewed": lambda: [lawful_drafter([skewed], (2, 2), seed=2)],
        "two members": lambda: [lawful_drafter([skewed, other], (2, 1), seed=3)],
        "two drafters": lambda: [
            lawful_drafter([skewed], (2, 1), seed=4),
            lawful_drafter([other, flat], (1, 1), seed=5, number=2),
        ],
    }
    return kinds[kind]()


CASES = [
    *[(Rule.COUPLED, kind) for kind in ("none", "random")],
    *[(Rule.NAIVE, kind) for kind in ("none", "random", "skewed")],
    *[(Rule.MSS, kind) for kind in ("none", "flat", "skewed", "two members", "two drafters")],
]
CUT_KINDS = ("random", "two members")
WHOLE = SamplingParams(temperature=1.0)
CUT = SamplingParams(temperature=0.8, top_k=6, top_p=0.95)
PENALISED = SamplingParams(
    temperature=1.2,
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=0.8,
    logit_bias=((2, 1.5), (4, -0.5)),
)


@pytest.mark.parametrize(
    ("rule", "kind", "sampling"),
    [
        *[pytest.param(rule, kind, WHOLE, id=f"{rule}-{kind}") for rule, kind in CASES],
        *[pytest.param(rule, kind, CUT, id=f"{rule}-{kind}-cut") for rule, kind in CASES if kind in CUT_KINDS],
        *[pytest.param(rule, kind, PENALISED, id=f"{rule}-{kind}-pen") for rule, kind in CASES if kind in CUT_KINDS],
    ],
)
def test_sampled_pairs_have_the_law_of_the_target(
    tmp_path: Path, rule: Rule, kind: str, sampling: SamplingParams
) -> None:
    folder = _tiny_target(tmp_path)
    counts, num_accepted = _sample_pairs(folder, sampling, rule, kind)
    assert num_accepted > NUM_SEEDS / 8 or kind == "none"  # the walk was really used
    _assert_law(counts, _pair_law(folder, sampling))


@pytest.mark.parametrize(("rule", "kind"), [(Rule.NAIVE, "random"), (Rule.MSS, "two members")], ids=lambda v: str(v))
def test_a_suppressed_token_is_never_drawn_and_the_others_keep_their_law(tmp_path: Path, rule: Rule, kind: str) -> None:
    folder = _tiny_target(tmp_path)
    sampling = WHOLE
    stop = int(_pair_law(folder, sampling).view(VOCAB_SIZE, VOCAB_SIZE).sum(1).argmax())
    counts, _ = _sample_pairs(folder, sampling, rule, kind, stop_token_ids=(stop,), min_tokens=3)
    _assert_law(counts, _pair_law(folder, sampling, forbidden=stop))


def _tiny_target(folder: Path) -> Path:
    return write_tiny_model(
        folder, vocab_size=VOCAB_SIZE, seed=3, has_tokenizer=False, hidden_size=16, num_hidden_layers=1
    )


def _sample_pairs(
    folder: Path, sampling: SamplingParams, rule: Rule, kind: str, **stop: object
) -> tuple[torch.Tensor, int]:
    """How often each pair of first tokens came (float32 [V * V]), and how many draft tokens were accepted."""
    counts, num_accepted = torch.zeros(VOCAB_SIZE * VOCAB_SIZE), 0
    drafters = _drafters_of(kind)
    settings = {"kv_tokens": 2048, "max_depth": 2, "drafters_per_session": max(len(drafters), 1)}
    with running_stand(load_model(folder, "float32"), *drafters, **settings) as stand:
        running = [
            stand.start(
                PROMPT,
                3,
                sampling=replace(sampling, seed=seed),
                speculation=SpeculationOptions(rule=rule),
                **stop,
            )
            for seed in range(NUM_SEEDS)
        ]
        for one in running:
            answer = one.answer()
            counts[answer.token_ids[0] * VOCAB_SIZE + answer.token_ids[1]] += 1
            num_accepted += answer.stats.num_accepted_tokens
        dropped = stand.sample("specgrove:stale_drafts_total", reason="malformed")
        assert dropped == 0 or kind not in ("flat", "skewed", "two members", "two drafters")
    return counts, num_accepted


def _assert_law(counts: torch.Tensor, law: torch.Tensor) -> None:
    """Chi-square of counts against probabilities; what is rare is one class, what is impossible never came."""
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
