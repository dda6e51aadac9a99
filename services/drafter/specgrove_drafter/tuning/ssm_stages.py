"""Stages in which the SSM comes to be: vocabulary, closed-form fit, distillation, evaluation.

work-dir/distil.pt    the newest checkpoint of the distillation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specgrove_drafter.tuning.agreement import Agreement, measure_agreement
from specgrove_drafter.tuning.batches import is_held_out
from specgrove_drafter.tuning.distil import Distillation, Recipe, choose_trained, make_optimizer, run
from specgrove_drafter.tuning.hub import Target, load_target_model
from specgrove_drafter.tuning.objective import tail_share_outside
from specgrove_drafter.tuning.progress import say
from specgrove_drafter.tuning.prompts import ChatFrame
from specgrove_drafter.tuning.settings import Settings
from specgrove_drafter.tuning.shards import Document, read_documents
from specgrove_drafter.tuning.ssm import build_ssm, fit_batches, fit_head, head_weight
from specgrove_drafter.tuning.vocabulary import DraftVocabulary, choose_vocabulary

KEEP_EVERY_S = 240.0


@dataclass(frozen=True, slots=True)
class Corpus:
    """The generated text, split by document, and the vocabulary chosen from its training part."""

    train: list[Document]
    held_out: list[Document]
    vocabulary: DraftVocabulary
    coverage: float

    @property
    def num_train_tokens(self) -> int:
        return sum(len(document) for document in self.train)

    @property
    def num_tokens(self) -> int:
        return self.num_train_tokens + sum(len(document) for document in self.held_out)


def read_corpus(settings: Settings, target: Target, shards: Path) -> Corpus:
    """Read all shards and trim the vocabulary."""
    documents = list(read_documents(shards))
    train = [document for document in documents if not is_held_out(document)]
    held_out = [document for document in documents if is_held_out(document)]
    frame = ChatFrame.from_tokenizer(target.tokenizer, target.end_id)
    always = {target.end_id, *frame.opening(None), *frame.to_answer, *frame.to_user}
    size = min(settings.draft_vocab_size, target.config.vocab_size + 1)
    vocabulary, coverage = choose_vocabulary(train, size, target.config.vocab_size, always)
    corpus = Corpus(train, held_out, vocabulary, coverage)
    say(
        "vocab",
        f"{size:,} draft ids cover {100 * coverage:.2f}% of the target's choices; {len(train):,} training documents "
        f"with {corpus.num_train_tokens:,} tokens, {len(held_out):,} held out",
    )
    return corpus


def fit(settings: Settings, target: Target, corpus: Corpus) -> Any:
    """The SSM with its closed-form head."""
    say("fit", f"{settings.layers} layers, ridge regression on up to {settings.fit_tokens:,} tokens")
    model = load_target_model(target, torch.device("cpu"), pack=False)
    to_draft = corpus.vocabulary.to_draft()
    token_ids: dict[str, int | None] = {
        "eos_token_id": int(to_draft[target.end_id]),
        "bos_token_id": None,
        "pad_token_id": None,
    }
    ssm = build_ssm(model, corpus.vocabulary, settings.layers, token_ids)
    head = head_weight(model)
    del model
    ssm.to(settings.device)
    equations = fit_head(
        ssm, fit_batches(corpus.train, corpus.vocabulary, settings.fit_tokens), head, corpus.vocabulary, settings.ridge
    )
    agreement = measure_agreement(ssm, corpus.held_out, corpus.vocabulary)
    say("fit", f"solved from {equations.num_rows:,} positions; held-out documents: {agreement.line()}")
    return ssm


def distil(settings: Settings, target: Target, corpus: Corpus, ssm: Any) -> Distillation:
    """Distil `ssm` in place, from a checkpoint of the same run where there is one."""
    minutes, steps = settings.distil_minutes, settings.distil_steps
    recipe = Recipe(
        max_steps=steps,
        max_seconds=None if minutes is None else 60 * minutes,
        learning_rate=settings.learning_rate,
        batch_tokens=settings.batch_tokens,
        seed=settings.seed,
    )
    choose_trained(ssm, tables=settings.train_tables)
    tail = tail_share_outside(corpus.train, corpus.vocabulary.to_draft())
    task = Distillation(ssm, make_optimizer(ssm, recipe), recipe, corpus.train, corpus.vocabulary, tail)
    made_from = (
        settings.seed,
        settings.train_tables,
        settings.layers,
        corpus.vocabulary.size,
        len(corpus.train),
        corpus.num_train_tokens,
    )
    stamp = "/".join(map(str, (target.fingerprint, *made_from)))
    path = settings.work_dir / "distil.pt"
    if path.exists():
        task.load(path, stamp)
        say("distil", f"continuing after step {task.progress.step:,}")
    if task.is_done:
        return task
    budget = f"{steps:,} steps" if steps is not None else f"{minutes:g} minutes"
    say("distil", f"{budget}; {tail:.3f} of the target's tail lies outside the vocabulary")

    def report(loss: float) -> None:
        at = task.progress
        share = at.used_share(recipe)
        rate = at.num_tokens / max(at.seconds, 1e-9)
        left = at.seconds * (1 - share) / max(share, 1e-9) / 60
        say("distil", f"step {at.step:,}, epoch {at.epoch}, KL {loss:.4f}, {rate:,.0f} tokens/s, {left:.0f} min left")

    def keep() -> None:
        task.save(path, stamp)
        say("distil", f"saved; held-out documents: {measure_agreement(ssm, corpus.held_out, corpus.vocabulary).line()}")

    run(task, report, keep, keep_every_s=KEEP_EVERY_S)
    return task


def evaluate(ssm: Any, corpus: Corpus, answers: Sequence[Document]) -> dict[str, Agreement]:
    """Agreement on held-out own text and on the answers to the evaluation prompts."""
    measured = {"own text, held-out documents": measure_agreement(ssm, corpus.held_out, corpus.vocabulary)}
    if answers:
        measured["greedy answers to evaluation prompts"] = measure_agreement(ssm, answers, corpus.vocabulary)
    for name, agreement in measured.items():
        say("evaluate", f"{name}: {agreement.line()}")
    return measured
