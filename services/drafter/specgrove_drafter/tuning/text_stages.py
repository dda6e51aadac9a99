"""Stages in which the target speaks: its training text, and its answers to the evaluation prompts.

    work-dir/run.json     which target, seed and prompts the text belongs to
    work-dir/shards/      generate
    work-dir/answers/     the greedy answers to the evaluation prompts

What is on disk and belongs to this run is not made again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from specgrove_drafter.tuning.errors import ResumeError, SettingsError
from specgrove_drafter.tuning.generate import Generator
from specgrove_drafter.tuning.hub import Target, load_target_model
from specgrove_drafter.tuning.progress import Meter, say
from specgrove_drafter.tuning.prompt_seeds import SYSTEMS
from specgrove_drafter.tuning.prompts import (
    ChatFrame,
    DocumentPlan,
    TurnLimits,
    plans_from_prompts,
    read_prompts,
    synthetic_plan,
)
from specgrove_drafter.tuning.settings import Settings
from specgrove_drafter.tuning.shards import (
    SHARD_DOCUMENTS,
    Document,
    num_tokens_on_disk,
    read_documents,
    shards_on_disk,
    write_shard,
)
from specgrove_drafter.tuning.slots import use_slot_attention
from specgrove_drafter.tuning.writers import run_writers

EVAL_TOKENS = 96


def claim_work_dir(settings: Settings, target: Target) -> Path:
    """The folder of shards, after checking that earlier text in it is this run's; raises ResumeError otherwise."""
    shards = settings.work_dir / "shards"
    shards.mkdir(parents=True, exist_ok=True)
    prompts = settings.prompts.name if settings.prompts else "written by the target"
    wanted = {
        "target": target.fingerprint,
        "seed": settings.seed,
        "prompts": prompts,
        "feature_layers": list(settings.feature_layers_of(target.config)),
    }
    record = settings.work_dir / "run.json"
    if record.exists():
        found = json.loads(record.read_text(encoding="utf-8"))
        if found != wanted:
            changed = ", ".join(name for name in wanted if found.get(name) != wanted[name])
            raise ResumeError(
                f"{settings.work_dir} holds text of another run (different {changed}); use another folder"
            )
    record.write_text(json.dumps(wanted, indent=2), encoding="utf-8")
    return shards


def generate(settings: Settings, target: Target, shards: Path) -> None:
    """Write shards until they hold `--tokens` tokens, or every prompt of `--prompts` is answered."""
    done = num_tokens_on_disk(shards)
    if done >= settings.tokens:
        say("generate", f"{done:,} tokens in {len(shards_on_disk(shards))} shards are there already")
        return
    frame = ChatFrame.from_tokenizer(target.tokenizer, target.end_id)
    longest_opening = max(len(frame.opening(system)) for system in (None, *SYSTEMS))
    if 2 * longest_opening > settings.document_tokens:
        wanted = f"at least {2 * longest_opening} for this target's chat template"
        raise SettingsError([f"--document-tokens: must be {wanted}, not {settings.document_tokens}"])
    say("generate", f"the target writes {settings.tokens:,} tokens in {settings.writers} x {settings.slots} slots")
    if settings.writers == 1:
        write_text(settings, target, shards, 0, Meter(settings.tokens, done))
    else:
        run_writers(settings, shards, Meter(settings.tokens, done))


def write_text(settings: Settings, target: Target, shards: Path, writer: int, meter: Meter | None) -> None:
    """Write the shards that are this writer's share (every `--writers`-th); with a meter, until it is full."""
    finished = set(shards_on_disk(shards))
    frame = ChatFrame.from_tokenizer(target.tokenizer, target.end_id)
    model = load_target_model(target, torch.device(settings.device), pack=True, in_bulk=True)
    use_slot_attention(model)
    layers = settings.feature_layers_of(target.config)
    generator = Generator(model, frame, settings.seed, settings.slots, settings.document_tokens, layers)

    def is_mine(plan: DocumentPlan) -> bool:
        shard = plan.document_id // SHARD_DOCUMENTS
        return shard % settings.writers == writer and shard not in finished

    waiting: dict[int, list[Document]] = {}
    for document in generator.play(filter(is_mine, _plans(settings, frame))):
        shard = document.document_id // SHARD_DOCUMENTS
        waiting.setdefault(shard, []).append(document)
        if len(waiting[shard]) == SHARD_DOCUMENTS:
            num_tokens = write_shard(shards, shard, waiting.pop(shard))
            if meter is not None:
                meter.advance(num_tokens)
                say("generate", f"shard {shard}: {meter.describe('tokens')}")
                if meter.done >= settings.tokens:
                    return
    for shard, documents in waiting.items():  # a prompt file ended in the middle of a shard
        num_tokens = write_shard(shards, shard, documents)
        if meter is not None:
            meter.advance(num_tokens)
    if meter is not None:
        say("generate", f"all prompts answered: {meter.describe('tokens')}")


def _plans(settings: Settings, frame: ChatFrame) -> Iterator[DocumentPlan]:
    if settings.prompts is not None:
        plans = plans_from_prompts(frame, read_prompts(settings.prompts), settings.seed)
        longest = settings.document_tokens
        return (plan for plan in plans if len(plan.opening) + len(plan.forced) < longest)
    plans = (synthetic_plan(frame, settings.seed, number) for number in itertools.count())
    # A tokenizer that splits every word makes a long seed: cut it, so that the document fits its slot.
    return (replace(p, forced=p.forced[: settings.document_tokens - len(p.opening) - 1]) for p in plans)


def answer_prompts(settings: Settings, target: Target) -> list[Document]:
    """The target's greedy answers to the evaluation prompts: never trained on, they measure the finished SSM."""
    if settings.eval_prompts is None:
        return []
    prompts = read_prompts(settings.eval_prompts)[:: settings.eval_every]
    say("evaluate", f"the target answers {len(prompts)} prompts with {EVAL_TOKENS} tokens each")
    frame = ChatFrame.from_tokenizer(target.tokenizer, target.end_id)
    plans = [
        DocumentPlan(p.document_id, p.opening, p.forced, TurnLimits(0, EVAL_TOKENS), 1, 0.0)
        for p in plans_from_prompts(frame, prompts, settings.seed)
    ]
    kept = settings.work_dir / "answers" / f"{_digest(prompts)}-seed-{settings.seed}"
    if shards_on_disk(kept):
        return list(read_documents(kept))
    model = load_target_model(target, torch.device(settings.device), pack=True)
    use_slot_attention(model)
    longest = max(len(plan.opening) + len(plan.forced) for plan in plans)
    slots = min(settings.slots, 8, len(plans))
    layers = settings.feature_layers_of(target.config)
    generator = Generator(model, frame, settings.seed, slots, longest + EVAL_TOKENS + 1, layers)
    answers = list(generator.play(iter(plans)))
    kept.mkdir(parents=True, exist_ok=True)
    write_shard(kept, 0, answers)
    return answers


def _digest(prompts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()[:12]
