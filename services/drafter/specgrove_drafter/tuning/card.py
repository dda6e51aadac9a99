"""The model card of an exported SSM: what it is, how it was made, what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specgrove_drafter.tuning.agreement import Agreement
from specgrove_drafter.tuning.evaluate import PoolSoFar
from specgrove_drafter.tuning.settings import Boost, Settings, SsmShape


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Everything the card of one SSM of a pool states, beside the settings of the run."""

    number: int  # of the SSM, from 1
    prompts: str  # who wrote the user turns
    vocab_size: int
    coverage: float
    num_documents: int
    num_tokens: int
    share_left: float  # of the training positions: what the SSMs before it left to this one
    distil_steps: int
    distil_epochs: float
    distil_minutes: float
    measured: Mapping[str, PoolSoFar]  # by text


def write_card(settings: Settings, facts: CardFacts) -> str:
    """The card in markdown."""
    target, shape = settings.name, settings.shapes[facts.number - 1]
    return f"""---
license: {settings.licence}
base_model: {target}
tags: [speculative-decoding, draft-model]
---
# SSM for {target}

A small speculative model: it guesses the next tokens of {target}, which then checks them.
It is no chat model of its own. It speaks the target's tokenizer (not copied here) through a trimmed vocabulary.
{_place_in_pool(settings, facts)}
* {shape.num_layers} layers of the target's shape, {facts.vocab_size:,} draft ids, untied embedding and head,
  {_stored(settings)}.
* `draft_vocab.safetensors` holds `d2t` (int64): target id = draft id + `d2t[draft id]`. The last draft id,
  `draft_vocab_other_id` in `config.json`, stands for every other token: feed it for tokens outside the vocabulary,
  never propose it.
* The draft ids cover {100 * facts.coverage:.2f}% of the target's own choices in the training text.
{_fed(shape)}
## How it was made

1. {target} wrote {facts.num_documents:,} conversations ({facts.num_tokens:,} tokens);
   {facts.prompts}. Its next-token laws and some of its states were kept.
2. {_started(settings, facts)}
3. {_trained(settings, facts)}

```
{settings.command()}
```

Seed {settings.seed}. Text is written and trained on until a number of tokens or minutes is reached, so a repetition
gives an equivalent SSM, not the same bits.

## Measured

The target's greedy choice is among the SSM's first k proposals (%), over positions of the target's answers. Depth 0
reads the SSM's own states only; depth d has the features of the row that drafting at depth d has.{_of_pool(facts)}

{_table(facts)}

Committed tokens per step that a static tree gives, bonus token included:

{_lengths(facts)}

## Licence

{settings.licence}, like {target}, from whose weights it is derived.
"""


def _place_in_pool(settings: Settings, facts: CardFacts) -> str:
    num_ssms = len(settings.layers)
    if num_ssms == 1:
        return ""
    learnt = "was tuned on everything"
    if facts.number > 1 and settings.boost is Boost.MIXTURE:
        learnt += ", so that the mean of its law and those of the SSMs before it is the target's"
    elif facts.number > 1:
        learnt = f"was tuned on the {100 * facts.share_left:.0f}% of the positions that those before it do not predict"
    return f"\nSSM {facts.number} of a pool of {num_ssms}: it {learnt} (collective boost-tuning).\n"


def _stored(settings: Settings) -> str:
    if settings.stored == "int8":
        return "int8 with a float16 scale a row (loads in specgrove; `--stored float16` loads anywhere)"
    return "float16"


def _fed(shape: SsmShape) -> str:
    if not shape.num_depths:
        return ""
    return (
        f"* `feature_maps.safetensors`: maps for draft depths 1 to {shape.num_depths}, from the target's states at its "
        "last committed row.\n"
    )


def _started(settings: Settings, facts: CardFacts) -> str:
    if facts.number == 1 and settings.start_from is not None:
        return (
            f"It went on from the weights of an earlier SSM of the same shape, {settings.start_from.name}, which was\n"
            "   made by this command, too: its own card says how."
        )
    return (
        "Layers and embedding were copied from the target's first layers; ridge regressions from their states to the\n"
        "   target's final states stand before the target's head."
    )


def _trained(settings: Settings, facts: CardFacts) -> str:
    if not facts.distil_steps:
        return "It was not distilled: its head is the closed-form fit alone."
    is_mixed = facts.number > 1 and settings.boost is Boost.MIXTURE
    of_what = (
        f" of the mean of its law and\n   those of SSMs 1 to {facts.number - 1}, which stay fixed," if is_mixed else ""
    )
    return (
        f"It was distilled for {facts.distil_steps:,} steps ({facts.distil_epochs:.1f} epochs,"
        f" {facts.distil_minutes:.0f} minutes). The loss is\n   the KL divergence{of_what} to the target on its 16 "
        "likeliest tokens, on all tokens outside the vocabulary\n   together, and on the rest."
    )


def _of_pool(facts: CardFacts) -> str:
    if facts.number == 1:
        return ""
    return (
        f'\n"Any": the choice is within the first k of some SSM from 1 to {facts.number}, at depth 1; "mean": within '
        "the\nfirst k of the mean of their laws."
    )


def _table(facts: CardFacts) -> str:
    lines = ["| text | positions | depth | k=1 | 2 | 3 | 4 | 5 |", "|---|---|---|---|---|---|---|---|"]
    for name, so_far in facts.measured.items():
        start = f"| {name} | {so_far.newest.num_positions:,} |"
        lines += [f"{start} {depth} | {_shares(top)} |" for depth, top in enumerate(_by_depth(so_far.newest))]
        if facts.number > 1:
            lines.append(f"{start} pool so far, any | {_shares(so_far.any_top)} |")
            mean = enumerate(_by_depth(so_far.mean))
            lines += [f"{start} pool so far, mean, {depth} | {_shares(top)} |" for depth, top in mean]
    return "\n".join(lines)


def _by_depth(agreement: Agreement) -> tuple[tuple[float, ...], ...]:
    return (agreement.top, *agreement.top_by_depth)


def _shares(top: Sequence[float]) -> str:
    return " | ".join(f"{100 * share:.1f}" for share in top)


def _lengths(facts: CardFacts) -> str:
    lines = ["| text | chain of 4 | tree <4,2,2,1> |", "|---|---|---|"]
    for name, so_far in facts.measured.items():
        lines.append(_length_row(name, so_far.newest))
        if facts.number > 1:
            lines.append(_length_row(f"{name}: pool so far, mean", so_far.mean))
    return "\n".join(lines)


def _length_row(name: str, agreement: Agreement) -> str:
    return f"| {name} | {agreement.chain_len:.2f} | {agreement.tree_len:.2f} |"
