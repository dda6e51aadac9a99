"""The model card of an exported SSM: what it is, how it was made, what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specgrove_drafter.tuning.agreement import Agreement


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Everything the card states."""

    target: str
    licence: str
    command: str
    seed: int
    prompts: str  # who wrote the user turns
    num_layers: int
    vocab_size: int
    coverage: float
    num_documents: int
    num_tokens: int
    distil_steps: int
    distil_epochs: float
    distil_minutes: float
    measured: Mapping[str, Agreement]


def write_card(facts: CardFacts) -> str:
    """The card in markdown."""
    rows = "\n".join(
        f"| {name} | {agreement.num_positions:,} | "
        + " | ".join(f"{100 * share:.1f}" for share in agreement.top)
        + f" | {agreement.chain_len:.2f} | {agreement.tree_len:.2f} |"
        for name, agreement in facts.measured.items()
    )
    trained = (
        f"distilled for {facts.distil_steps:,} steps ({facts.distil_epochs:.1f} epochs,"
        f" {facts.distil_minutes:.0f} minutes)"
        if facts.distil_steps
        else "not distilled: its head is the closed-form fit alone"
    )
    return f"""---
license: {facts.licence}
base_model: {facts.target}
tags: [speculative-decoding, draft-model]
---
# SSM for {facts.target}

A small speculative model: it guesses the next tokens of {facts.target}, which then checks them.
It is no chat model of its own. It speaks the target's tokenizer (not copied here) through a trimmed vocabulary.

* {facts.num_layers} layers of the target's shape, {facts.vocab_size:,} draft ids, untied embedding and head, float16.
* `draft_vocab.safetensors` holds `d2t` (int64): target id = draft id + `d2t[draft id]`. The last draft id,
  `draft_vocab_other_id` in `config.json`, stands for every other token: feed it for tokens outside the vocabulary,
  never propose it.
* The draft ids cover {100 * facts.coverage:.2f}% of the target's own choices in the training text.

## How it was made

1. {facts.target} wrote {facts.num_documents:,} conversations ({facts.num_tokens:,} tokens);
   {facts.prompts}. Its next-token laws were kept.
2. Layers and embedding were copied from the target's first layers; a ridge regression from their states to the
   target's final states was folded into the target's head.
3. It was {trained}. The loss of
   distillation is the KL divergence to the target on its 16 likeliest tokens, on all tokens outside the vocabulary
   together, and on the rest.

```
{facts.command}
```

Seed {facts.seed}.

## Measured

The target's greedy choice is among the SSM's first k proposals (%), over positions of the target's answers; and the
committed tokens per step that a static tree gives, bonus token included.

| text | positions | k=1 | 2 | 3 | 4 | 5 | chain of 4 | tree <4,2,2,1> |
|---|---|---|---|---|---|---|---|---|
{rows}

## Licence

{facts.licence}, like {facts.target}, from whose weights it is derived.
"""
