"""An SSM as `transformers` can use it: a float32 model whose tokens are the target's.

A trimmed vocabulary stays trimmed inside: target ids become draft ids on the way in, and on the way out the logits of
the draft ids are scattered over the target's vocabulary, all others -inf. So the assistant pays for its 8,192 rows and
not for 49,152. It works from tokens alone; the states of the target that the drafter feeds its SSM do not reach it.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch

from specgrove.runtime import hf
from specgrove.runtime.draft_vocab import OTHER_ID_KEY, DraftVocab


def load_assistant(folder: Path, target_vocab_size: int) -> Any:
    """A model for `generate(assistant_model=...)` of a target with `target_vocab_size` tokens."""
    model: Any = hf.load_causal_lm(str(folder), dtype=torch.float32, attention="sdpa")
    other_id = json.loads((folder / "config.json").read_text()).get(OTHER_ID_KEY)
    vocab = DraftVocab.load(folder, target_vocab_size, other_id)
    if vocab is not None:
        model.forward = _in_target_tokens(model.forward, vocab, target_vocab_size)
        model.config.vocab_size = target_vocab_size  # `generate` refuses an assistant with another one
    return model


def _in_target_tokens(forward: Any, vocab: DraftVocab, target_vocab_size: int) -> Any:
    """`forward` with target ids in and logits over the target's vocabulary out; its signature is read by `generate`."""
    listed = torch.ones(vocab.to_target.numel(), dtype=torch.bool)
    if vocab.other_id is not None:
        listed[vocab.other_id] = False
    places = vocab.to_target[listed]

    @functools.wraps(forward)
    def wrapped(input_ids: torch.Tensor, **settings: Any) -> Any:  # int64 [1, N], target ids
        output = forward(input_ids=vocab.to_draft[input_ids], **settings)
        logits = output.logits  # float32 [1, W, V_draft]
        wide = logits.new_full((*logits.shape[:-1], target_vocab_size), float("-inf"))
        wide[..., places] = logits[..., listed]
        output.logits = wide  # float32 [1, W, V_target]
        return output

    return wrapped
