"""`python -m specgrove_drafter.tuning`: from a target folder to a pool of SSMs, stage by stage, top to bottom."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence

import torch

from specgrove.errors import SpecgroveError
from specgrove_drafter.tuning import ssm_stages, text_stages
from specgrove_drafter.tuning.batches import epoch_batches
from specgrove_drafter.tuning.card import CardFacts, write_card
from specgrove_drafter.tuning.distil import Distillation
from specgrove_drafter.tuning.errors import SettingsError
from specgrove_drafter.tuning.evaluate import PoolEvaluation, PoolSoFar
from specgrove_drafter.tuning.export import Storage, export_ssm
from specgrove_drafter.tuning.hub import open_target, quiet_hub
from specgrove_drafter.tuning.progress import say
from specgrove_drafter.tuning.settings import Settings, read_settings
from specgrove_drafter.tuning.ssm_stages import Corpus, Earlier, SsmStages


def tune(settings: Settings) -> None:
    """Run every stage that is not done yet; raises TuningError when one cannot be."""
    quiet_hub()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    target = open_target(settings.target)
    if max(settings.layers) > target.config.num_hidden_layers:
        present = target.config.num_hidden_layers
        raise SettingsError([f"--layers: the target has {present} layers, not {max(settings.layers)}"])
    feature_layers = settings.feature_layers_of(target.config)
    shards = text_stages.claim_work_dir(settings, target)
    text_stages.generate(settings, target, shards)
    answers = text_stages.answer_prompts(settings, target)
    corpus = ssm_stages.read_corpus(settings, target, shards)
    pool = PoolEvaluation(ssm_stages.measured_texts(corpus, answers), corpus.vocabulary)
    earlier: Earlier | None = None
    for number, shape in enumerate(settings.shapes, start=1):
        stages = SsmStages(settings, target, corpus, number, shape, earlier)
        ssm, distillation = stages.tune()
        card = write_card(settings, _facts(settings, stages, distillation, pool.add(ssm)))
        storage = Storage(settings.stored == "int8", feature_layers, target.config.to_dict().get("unk_token_id") or 0)
        folder = settings.folder_of(number)
        size = export_ssm(ssm, corpus.vocabulary, card, folder, storage)
        say("export", f"{folder}: {size / 1e6:.1f} MB")
        if number < len(settings.shapes):
            earlier = stages.hand_on(ssm, distillation)


def _facts(
    settings: Settings, stages: SsmStages, distillation: Distillation, measured: Mapping[str, PoolSoFar]
) -> CardFacts:
    corpus = stages.corpus
    return CardFacts(
        number=stages.number,
        prompts="the user turns came from a prompt file" if settings.prompts else "it wrote the user turns too",
        vocab_size=corpus.vocabulary.size,
        coverage=corpus.coverage,
        num_documents=len(corpus.train) + len(corpus.held_out),
        num_tokens=corpus.num_tokens,
        share_left=_share_left(corpus, stages.earlier),
        distil_steps=distillation.progress.step,
        distil_epochs=_epochs(distillation),
        distil_minutes=distillation.progress.seconds / 60,
        measured=measured,
    )


def _share_left(corpus: Corpus, earlier: Earlier | None) -> float:
    if earlier is None or earlier.left is None:
        return 1.0
    return sum(int(kept.sum()) for kept in earlier.left.values()) / max(corpus.num_train_tokens, 1)


def _epochs(distillation: Distillation) -> float:
    """How often each training document was seen, on average."""
    at = distillation.progress
    lengths = [len(document) for document in distillation.documents]
    batches = epoch_batches(lengths, distillation.recipe.batch_tokens, random.Random(0))
    return at.epoch + at.batch / max(len(batches), 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when the SSM is in place, 2 for wrong arguments, 1 for anything else foreseen."""
    try:
        tune(read_settings(sys.argv[1:] if arguments is None else arguments))
    except SpecgroveError as error:
        print(f"specgrove-tune: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
