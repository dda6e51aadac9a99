"""`python -m specgrove_drafter.tuning`: from a target folder to an SSM folder, stage by stage, top to bottom."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

import torch

from specgrove.errors import SpecgroveError
from specgrove_drafter.tuning import ssm_stages, text_stages
from specgrove_drafter.tuning.batches import epoch_batches
from specgrove_drafter.tuning.card import CardFacts, write_card
from specgrove_drafter.tuning.distil import Distillation
from specgrove_drafter.tuning.errors import SettingsError
from specgrove_drafter.tuning.export import export_ssm
from specgrove_drafter.tuning.hub import open_target, quiet_hub
from specgrove_drafter.tuning.progress import say
from specgrove_drafter.tuning.settings import Settings, read_settings


def tune(settings: Settings) -> None:
    """Run every stage that is not done yet; raises TuningError when one cannot be."""
    quiet_hub()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    target = open_target(settings.target)
    if settings.layers > target.config.num_hidden_layers:
        present = target.config.num_hidden_layers
        raise SettingsError([f"--layers: the target has {present} layers, not {settings.layers}"])
    shards = text_stages.claim_work_dir(settings, target)
    text_stages.generate(settings, target, shards)
    corpus = ssm_stages.read_corpus(settings, target, shards)
    ssm = ssm_stages.fit(settings, target, corpus)
    distillation = ssm_stages.distil(settings, target, corpus, ssm)
    measured = ssm_stages.evaluate(ssm, corpus, text_stages.answer_prompts(settings, target))
    card = write_card(
        CardFacts(
            target=settings.name,
            licence=settings.licence,
            command=settings.command(),
            seed=settings.seed,
            prompts="the user turns came from a prompt file" if settings.prompts else "it wrote the user turns too",
            num_layers=settings.layers,
            vocab_size=corpus.vocabulary.size,
            coverage=corpus.coverage,
            num_documents=len(corpus.train) + len(corpus.held_out),
            num_tokens=corpus.num_tokens,
            distil_steps=distillation.progress.step,
            distil_epochs=_epochs(distillation),
            distil_minutes=distillation.progress.seconds / 60,
            measured=measured,
        )
    )
    size = export_ssm(ssm, corpus.vocabulary, card, settings.out, target.config.to_dict().get("unk_token_id") or 0)
    say("export", f"{settings.out}: {size / 1e6:.1f} MB")


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
