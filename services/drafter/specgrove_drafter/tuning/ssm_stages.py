"""Stages in which one SSM of the pool comes to be: closed-form fit, distillation, and what it hands to the next one.

work-dir/distil-1.pt    the newest checkpoint of the first SSM's distillation, and so on
work-dir/left-2.pt      under --boost drop: the positions that the first SSM leaves to the second, and so on
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specgrove_drafter.tuning.agreement import measure_agreement
from specgrove_drafter.tuning.batches import KeptPositions, is_held_out
from specgrove_drafter.tuning.boost import positions_left
from specgrove_drafter.tuning.distil import Distillation, Recipe, choose_trained, make_optimizer, run
from specgrove_drafter.tuning.hub import Target, load_target_model
from specgrove_drafter.tuning.objective import tail_share_outside
from specgrove_drafter.tuning.progress import say
from specgrove_drafter.tuning.prompts import ChatFrame
from specgrove_drafter.tuning.settings import Boost, Settings, SsmShape
from specgrove_drafter.tuning.shards import Document, read_documents
from specgrove_drafter.tuning.ssm import build_ssm, fit_batches, fit_head, head_weight
from specgrove_drafter.tuning.start import fingerprint, start_from
from specgrove_drafter.tuning.vocabulary import DraftVocabulary, choose_vocabulary

KEEP_EVERY_S = 480.0


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

    @property
    def num_features(self) -> int:
        """Numbers in a feature vector: the kept inner layers' states and the final ones'."""
        first = self.train[0]
        return int(first.features.shape[1] + first.states.shape[1])


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


@dataclass(frozen=True, slots=True)
class Earlier:
    """What the SSMs before hand to the next one; `stamp` names the weights that it comes from."""

    stamp: str
    left: KeptPositions | None = None  # --boost drop: the positions that none of them predicts; None: all positions
    laws: tuple[Any, ...] = ()  # --boost mixture: the SSMs whose laws are averaged with the next one's


@dataclass(frozen=True, slots=True)
class SsmStages:
    """One SSM of the pool: its number from 1, its shape, and what the ones before it, if any, handed on."""

    settings: Settings
    target: Target
    corpus: Corpus
    number: int
    shape: SsmShape
    earlier: Earlier | None

    def tune(self) -> tuple[Any, Distillation]:
        """Fit and distil, from the checkpoint of the same run where there is one."""
        ssm = self._build()
        task = self._task(ssm)
        path = self.settings.work_dir / f"distil-{self.number}.pt"
        if path.exists():
            task.load(path, self._stamp())
            self._say("distil", f"continuing after step {task.progress.step:,}")
        elif self._is_like_the_one_before:
            # The mean starts where the pool stands, and the first step already leads away from it.
            ssm.load_state_dict(self._laws[-1].state_dict())
            self._say("fit", "starts from the weights of the SSM before it")
        elif self._started_from is not None:
            start_from(ssm, self._started_from, self.corpus.vocabulary)
            self._say("fit", f"goes on from {self._started_from}; held out: {self._measure(ssm)}")
        else:
            self._fit(ssm)
        self._distil(task, path)
        return ssm, task

    def hand_on(self, ssm: Any, distillation: Distillation) -> Earlier:
        """What the next SSM needs of this one and those before it."""
        weights = f"{self._stamp()}/step {distillation.progress.step}"
        if self.settings.boost is Boost.MIXTURE:
            self._say("boost", "its law is part of the next one's loss")
            return Earlier(f"{weights}/{Boost.MIXTURE}", laws=(*self._laws, ssm.eval()))
        return self._leave(ssm, f"{weights}/top {self.settings.covered_top}")

    def _leave(self, ssm: Any, stamp: str) -> Earlier:
        """The positions that are left; from the file where these very weights made it."""
        path = self.settings.work_dir / f"left-{self.number + 1}.pt"
        top = self.settings.covered_top
        if path.exists():
            found = torch.load(path, weights_only=True)
            if found["stamp"] == stamp:
                return Earlier(stamp, found["left"])
        left = positions_left(ssm, self.corpus.train, self.corpus.vocabulary, top, self._kept)
        num_left = sum(int(kept.sum()) for kept in left.values())
        share = 100 * num_left / self.corpus.num_train_tokens
        self._say(
            "boost", f"leaves {num_left:,} positions ({share:.0f}%) to the next: the rest is among its first {top}"
        )
        torch.save({"stamp": stamp, "left": left}, path)
        return Earlier(stamp, left)

    @property
    def _kept(self) -> KeptPositions | None:
        return None if self.earlier is None else self.earlier.left

    @property
    def _is_like_the_one_before(self) -> bool:
        """Whether an SSM whose law counts in this one's loss has the same shape, so that its weights fit."""
        shapes = [replace(shape, distil_minutes=None) for shape in self.settings.shapes[: self.number]]
        return bool(self._laws) and shapes[-1] == shapes[-2]

    @property
    def _started_from(self) -> Path | None:
        return self.settings.start_from if self.number == 1 else None

    @property
    def _laws(self) -> tuple[Any, ...]:
        return () if self.earlier is None else self.earlier.laws

    def _build(self) -> Any:
        model = load_target_model(self.target, torch.device("cpu"), pack=False)
        to_draft = self.corpus.vocabulary.to_draft()
        token_ids: dict[str, int | None] = {
            "eos_token_id": int(to_draft[self.target.end_id]),
            "bos_token_id": None,
            "pad_token_id": None,
        }
        ssm = build_ssm(
            model,
            self.corpus.vocabulary,
            self.shape.num_layers,
            token_ids,
            num_depths=self.shape.num_depths,
            num_features=self.corpus.num_features,
            mlp_width=self.shape.mlp_width,
        )
        return ssm.to(self.settings.device)

    def _fit(self, ssm: Any) -> None:
        settings, corpus = self.settings, self.corpus
        depths = f", feature maps for {self.shape.num_depths} depths" if self.shape.num_depths else ""
        self._say(
            "fit", f"{self.shape.num_layers} layers{depths}: ridge regression on up to {settings.fit_tokens:,} tokens"
        )
        head = head_weight(load_target_model(self.target, torch.device("cpu"), pack=False))
        batches = fit_batches(corpus.train, corpus.vocabulary, settings.fit_tokens, self._kept)
        num_rows = fit_head(ssm, batches, head, corpus.vocabulary, settings.ridge)
        self._say("fit", f"solved from {num_rows:,} positions; held out: {self._measure(ssm)}")

    def _task(self, ssm: Any) -> Distillation:
        settings = self.settings
        minutes, steps = self.shape.distil_minutes, settings.distil_steps
        recipe = Recipe(
            max_steps=steps,
            max_seconds=None if minutes is None else 60 * minutes,
            learning_rate=settings.learning_rate,
            batch_tokens=settings.batch_tokens,
            seed=settings.seed + self.number - 1,
        )
        choose_trained(ssm, tables=settings.train_tables)
        tail = tail_share_outside(self.corpus.train, self.corpus.vocabulary.to_draft())
        optimizer = make_optimizer(ssm, recipe)
        corpus = self.corpus
        return Distillation(
            ssm, optimizer, recipe, corpus.train, corpus.vocabulary, tail, kept=self._kept, earlier=self._laws
        )

    def _distil(self, task: Distillation, path: Path) -> None:
        if task.is_done:
            return
        recipe = task.recipe
        self._say(
            "distil", f"{recipe.budget}; {task.tail_outside:.3f} of the target's tail lies outside the vocabulary"
        )

        def report(loss: float) -> None:
            at = task.progress
            share = at.used_share(recipe)
            rate = at.num_tokens / max(at.seconds, 1e-9)
            left = at.seconds * (1 - share) / max(share, 1e-9) / 60
            progress = f"step {at.step:,}, epoch {at.epoch}, KL {loss:.4f}, {rate:,.0f} tokens/s"
            self._say("distil", f"{progress}, {left:.0f} min left")

        def keep() -> None:
            task.save(path, self._stamp())
            self._say("distil", f"saved; held out: {self._measure(task.ssm)}")

        run(task, report, keep, keep_every_s=KEEP_EVERY_S)

    def _measure(self, ssm: Any) -> str:
        """Of the mean of the laws where that is what it is tuned for."""
        agreement = measure_agreement([*self._laws, ssm], self.corpus.held_out, self.corpus.vocabulary)
        return ("mean of the laws so far, " if self._laws else "") + agreement.line()

    def _stamp(self) -> str:
        """Names everything that a checkpoint of this SSM depends on."""
        settings, corpus = self.settings, self.corpus
        shapes = "+".join(shape.described for shape in settings.shapes[: self.number])
        made_from = (
            settings.seed,
            settings.train_tables,
            shapes,
            "all" if self.earlier is None else hashlib.sha256(self.earlier.stamp.encode()).hexdigest()[:8],
            corpus.vocabulary.size,
            len(corpus.train),
            corpus.num_train_tokens,
            *(() if self._started_from is None else (fingerprint(self._started_from),)),
        )
        return "/".join(map(str, (self.target.fingerprint, *made_from)))

    def _say(self, stage: str, text: str) -> None:
        say(stage, f"SSM {self.number}: {text}" if len(self.settings.shapes) > 1 else text)


def measured_texts(corpus: Corpus, answers: Sequence[Document]) -> dict[str, Sequence[Document]]:
    """What the pool is measured on, by the names that log and card use."""
    texts: dict[str, Sequence[Document]] = {"own text, held-out documents": corpus.held_out}
    return texts | ({"greedy answers to evaluation prompts": answers} if answers else {})
